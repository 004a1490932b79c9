
/*
 * The zone: one shared mapping with the table and the limits' counters.
 *
 * Nearly all of it is one run of pages for the table; a small directory of
 * counters stands before it.  A reload attaches to the same mapping, so that
 * what is counted and what is spent stay; only the master writes here, and
 * only while it reads a configuration.
 */


#include "ngx_http_tollgate.h"


/* counters are kept for one limit a KiB of the zone, and at most */
#define NGX_HTTP_TOLLGATE_MIN_ENTRIES  64
#define NGX_HTTP_TOLLGATE_MAX_ENTRIES  1024


static ngx_int_t ngx_http_tollgate_init_zone(ngx_shm_zone_t *shm_zone,
    void *data);
static ngx_int_t ngx_http_tollgate_create_table(
    ngx_http_tollgate_zone_t *zone, ngx_log_t *log);
static ngx_int_t ngx_http_tollgate_create_views(
    ngx_http_tollgate_zone_t *zone, ngx_http_tollgate_shctx_t *sh);
static ngx_int_t ngx_http_tollgate_attach_table(
    ngx_http_tollgate_zone_t *zone, ngx_log_t *log);
static ngx_int_t ngx_http_tollgate_bind_limits(
    ngx_http_tollgate_zone_t *zone, ngx_log_t *log);


ngx_http_tollgate_zone_t *
ngx_http_tollgate_add_zone(ngx_conf_t *cf, ngx_str_t *name, size_t size)
{
    ngx_shm_zone_t                 *shm_zone;
    ngx_http_tollgate_zone_t       *zone, **slot;
    ngx_http_tollgate_main_conf_t  *tmcf;

    shm_zone = ngx_shared_memory_add(cf, name, size,
                                     &ngx_http_tollgate_module);
    if (shm_zone == NULL) {
        return NULL;
    }

    if (shm_zone->data) {
        return shm_zone->data;
    }

    zone = ngx_pcalloc(cf->pool, sizeof(ngx_http_tollgate_zone_t));
    if (zone == NULL) {
        return NULL;
    }

    zone->name = shm_zone->shm.name;

    if (ngx_array_init(&zone->limits, cf->pool, 8, sizeof(void *))
        != NGX_OK)
    {
        return NULL;
    }

    tmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_tollgate_module);

    slot = ngx_array_push(&tmcf->zones);
    if (slot == NULL) {
        return NULL;
    }

    *slot = zone;

    shm_zone->init = ngx_http_tollgate_init_zone;
    shm_zone->data = zone;

    return zone;
}


/*
 * nginx would give a zone of another size new memory and forget the old one
 * in silence; so a reload that changes a zone is refused here, before that.
 */

ngx_int_t
ngx_http_tollgate_check_reload(ngx_conf_t *cf, ngx_http_tollgate_zone_t *zone)
{
    ngx_uint_t                 i;
    ngx_shm_zone_t            *shm_zone;
    ngx_list_part_t           *part;
    ngx_http_tollgate_zone_t  *old;

    /* while a configuration is read, ngx_cycle is the one that runs */

    part = (ngx_list_part_t *) &ngx_cycle->shared_memory.part;
    shm_zone = part->elts;

    for (i = 0; /* void */ ; i++) {

        if (i >= part->nelts) {
            if (part->next == NULL) {
                break;
            }
            part = part->next;
            shm_zone = part->elts;
            i = 0;
        }

        if (shm_zone[i].tag != &ngx_http_tollgate_module
            || shm_zone[i].shm.name.len != zone->name.len
            || ngx_strncmp(shm_zone[i].shm.name.data, zone->name.data,
                           zone->name.len)
               != 0)
        {
            continue;
        }

        old = shm_zone[i].data;

        return ngx_http_tollgate_same_zone(cf->log, zone, old->size,
                                           old->rows, old->row_entries);
    }

    return NGX_OK;
}


ngx_int_t
ngx_http_tollgate_same_zone(ngx_log_t *log, ngx_http_tollgate_zone_t *zone,
    size_t size, uint64_t rows, uint64_t row_entries)
{
    if (zone->size == size
        && zone->rows == rows
        && zone->row_entries == row_entries)
    {
        return NGX_OK;
    }

    ngx_log_error(NGX_LOG_EMERG, log, 0,
                  "zone \"%V\" runs with size=%uz rows=%uL row_entries=%uL "
                  "and cannot become size=%uz rows=%uL row_entries=%uL "
                  "without losing its counts; use a new zone name, or stop "
                  "nginx and start it, in %s:%ui", &zone->name,
                  size, rows, row_entries,
                  zone->size, zone->rows, zone->row_entries,
                  zone->file, zone->line);

    return NGX_ERROR;
}


ngx_int_t
ngx_http_tollgate_check_zones(ngx_conf_t *cf)
{
    u_char                          *file;
    ngx_uint_t                       i, line;
    ngx_http_tollgate_zone_t       **zones;
    ngx_http_tollgate_limit_t      **limits;
    ngx_http_tollgate_main_conf_t   *tmcf;

    tmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_tollgate_module);

    zones = tmcf->zones.elts;

    for (i = 0; i < tmcf->zones.nelts; i++) {

        if (zones[i]->size == 0) {

            limits = zones[i]->limits.elts;

            if (zones[i]->limits.nelts) {
                file = limits[0]->file;
                line = limits[0]->line;

            } else {
                file = zones[i]->used_file;
                line = zones[i]->used_line;
            }

            ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                          "unknown zone \"%V\": no \"tollgate_zone\" defines "
                          "it in %s:%ui", &zones[i]->name, file, line);
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_tollgate_init_zone(ngx_shm_zone_t *shm_zone, void *data)
{
    ngx_http_tollgate_zone_t  *ozone = data;

    ngx_http_tollgate_zone_t  *zone;

    zone = shm_zone->data;

    if (ozone) {
        zone->sh = ozone->sh;
        zone->shpool = ozone->shpool;

        if (ngx_http_tollgate_attach_table(zone, shm_zone->shm.log)
            != NGX_OK)
        {
            return NGX_ERROR;
        }

        return ngx_http_tollgate_bind_limits(zone, shm_zone->shm.log);
    }

    zone->shpool = (ngx_slab_pool_t *) shm_zone->shm.addr;

    if (shm_zone->shm.exists) {
        zone->sh = zone->shpool->data;

        if (ngx_http_tollgate_attach_table(zone, shm_zone->shm.log)
            != NGX_OK)
        {
            return NGX_ERROR;
        }

        return ngx_http_tollgate_bind_limits(zone, shm_zone->shm.log);
    }

    if (ngx_http_tollgate_create_table(zone, shm_zone->shm.log) != NGX_OK) {
        return NGX_ERROR;
    }

    return ngx_http_tollgate_bind_limits(zone, shm_zone->shm.log);
}


static ngx_int_t
ngx_http_tollgate_create_table(ngx_http_tollgate_zone_t *zone, ngx_log_t *log)
{
    size_t                      size;
    ngx_uint_t                  n;
    tollgate_status             status;
    tollgate_table_config       config;
    ngx_http_tollgate_shctx_t  *sh;

    n = zone->size / 8192;
    n = ngx_max(n, NGX_HTTP_TOLLGATE_MIN_ENTRIES);
    n = ngx_min(n, NGX_HTTP_TOLLGATE_MAX_ENTRIES);

    size = offsetof(ngx_http_tollgate_shctx_t, entries)
           + n * sizeof(ngx_http_tollgate_entry_t);

    sh = ngx_slab_calloc(zone->shpool, size);
    if (sh == NULL) {
        goto too_small;
    }

    if (zone->policies && ngx_http_tollgate_create_views(zone, sh) != NGX_OK) {
        goto too_small;
    }

    sh->nentries = n;
    sh->rows = zone->rows;
    sh->row_entries = zone->row_entries;

    /* every page that is left */

    sh->table_size = zone->shpool->pfree * ngx_pagesize;
    sh->table = ngx_slab_alloc(zone->shpool, sh->table_size);

    if (sh->table == NULL) {
        goto too_small;
    }

    ngx_memzero(&config, sizeof(tollgate_table_config));

    config.struct_size = sizeof(tollgate_table_config);
    config.rows = zone->rows;
    config.row_entries = zone->row_entries;

    status = tollgate_table_capacity(sh->table_size, zone->rows,
                                     zone->row_entries, &config.capacity);

    if (status == TOLLGATE_ERR_SIZE || config.capacity == 0) {
        goto too_small;
    }

    if (ngx_http_tollgate_seed(config.seed, sizeof(config.seed), log)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

#if !(NGX_DEBUG_MALLOC)
    config.flags = TOLLGATE_MEMORY_IS_ZERO;     /* the pages are new */
#endif

    if (status == TOLLGATE_OK) {
        status = tollgate_table_init(sh->table, sh->table_size, &config,
                                     &zone->table);
    }

    if (status != TOLLGATE_OK) {
        ngx_log_error(NGX_LOG_EMERG, log, 0,
                      "zone \"%V\" of size=%uz rows=%uL row_entries=%uL "
                      "cannot be used: %s", &zone->name, zone->size,
                      zone->rows, zone->row_entries,
                      tollgate_status_str(status));
        return NGX_ERROR;
    }

    zone->sh = sh;
    zone->shpool->data = sh;

    return NGX_OK;

too_small:

    ngx_log_error(NGX_LOG_EMERG, log, 0,
                  "zone \"%V\" is too small: size=%uz does not hold rows=%uL "
                  "of row_entries=%uL and any key", &zone->name, zone->size,
                  zone->rows, zone->row_entries);

    return NGX_ERROR;
}


/* what else is known of rules: how fast they are, and whom they limit most */

static ngx_int_t
ngx_http_tollgate_create_views(ngx_http_tollgate_zone_t *zone,
    ngx_http_tollgate_shctx_t *sh)
{
    size_t  size, align;

    /* pages and halves of pages are aligned as lines are */

    if (tollgate_histogram_layout(&size, &align) != TOLLGATE_OK) {
        return NGX_ERROR;
    }

    sh->histogram = ngx_slab_calloc(zone->shpool, ngx_max(size, align));

    if (tollgate_top_layout(&size, &align) != TOLLGATE_OK) {
        return NGX_ERROR;
    }

    sh->top = ngx_slab_calloc(zone->shpool, ngx_max(size, align));

    return (sh->histogram && sh->top) ? NGX_OK : NGX_ERROR;
}


static ngx_int_t
ngx_http_tollgate_attach_table(ngx_http_tollgate_zone_t *zone, ngx_log_t *log)
{
    tollgate_status             status;
    ngx_http_tollgate_shctx_t  *sh;

    sh = zone->sh;

    status = TOLLGATE_ERR_MISMATCH;

    if (sh->rows == zone->rows && sh->row_entries == zone->row_entries) {
        status = tollgate_table_attach(sh->table, sh->table_size, NULL,
                                       &zone->table);
    }

    if (status != TOLLGATE_OK) {
        ngx_log_error(NGX_LOG_EMERG, log, 0,
                      "zone \"%V\" holds another layout, with rows=%uL "
                      "row_entries=%uL: %s", &zone->name, sh->rows,
                      sh->row_entries, tollgate_status_str(status));
        return NGX_ERROR;
    }

    return NGX_OK;
}


/* does the table hold each limit, and where are its counters? */

static ngx_int_t
ngx_http_tollgate_bind_limits(ngx_http_tollgate_zone_t *zone, ngx_log_t *log)
{
    ngx_uint_t                   i;
    tollgate_limit_config        config;
    ngx_http_tollgate_limit_t  **limits;
    ngx_http_tollgate_entry_t   *entry;

    limits = zone->limits.elts;

    ngx_shmtx_lock(&zone->shpool->mutex);

    zone->sh->generation++;

    for (i = 0; i < zone->limits.nelts; i++) {

        if (tollgate_table_accepts(&zone->table, &limits[i]->limit)
            != TOLLGATE_OK)
        {
            config.struct_size = sizeof(tollgate_limit_config);
            (void) tollgate_limit_describe(&limits[i]->limit, &config);

            ngx_log_error(NGX_LOG_EMERG, log, 0,
                          "zone \"%V\" with rows=%uL row_entries=%uL cannot "
                          "hold limit \"%V\" (%V): \"tollgate_zone\" needs "
                          "\"rows\", one a key, and row_entries=%uL or more "
                          "in %s:%ui", &zone->name, zone->rows,
                          zone->row_entries, &limits[i]->name,
                          &limits[i]->limit_text, config.limit,
                          limits[i]->file, limits[i]->line);
            goto failed;
        }

        entry = ngx_http_tollgate_entry(zone->sh, &limits[i]->name, 0);

        if (entry == NULL) {
            ngx_log_error(NGX_LOG_EMERG, log, 0,
                          "zone \"%V\" has counters for %ui limits, "
                          "none is left for \"%V\" in %s:%ui", &zone->name,
                          zone->sh->nentries, &limits[i]->name,
                          limits[i]->file, limits[i]->line);
            goto failed;
        }

        limits[i]->counters = &entry->counters;
    }

    ngx_shmtx_unlock(&zone->shpool->mutex);

    return ngx_http_tollgate_bind_rules(zone, log);

failed:

    ngx_shmtx_unlock(&zone->shpool->mutex);

    return NGX_ERROR;
}


/*
 * Counters by name, old ones first, under the pool's mutex.  When none is
 * free, those that neither this configuration nor the one before it named
 * are used again.  "policy" is 0, or the flag of policies' entries.
 */

ngx_http_tollgate_entry_t *
ngx_http_tollgate_entry(ngx_http_tollgate_shctx_t *sh, ngx_str_t *name,
    ngx_uint_t policy)
{
    u_char                      len;
    ngx_uint_t                  i;
    ngx_http_tollgate_entry_t  *entry, *spare;

    spare = NULL;
    len = (u_char) (name->len | policy);

    for (i = 0; i < sh->nentries; i++) {

        entry = &sh->entries[i];

        if (entry->len == len
            && ngx_memcmp(entry->name, name->data, name->len) == 0)
        {
            entry->generation = sh->generation;
            return entry;
        }

        if (entry->generation == 0) {
            if (spare == NULL || spare->generation) {
                spare = entry;
            }

        } else if (spare == NULL && entry->generation + 1 < sh->generation) {
            spare = entry;
        }
    }

    if (spare) {
        ngx_memzero(spare, sizeof(ngx_http_tollgate_entry_t));

        spare->len = len;
        ngx_memcpy(spare->name, name->data, name->len);
        spare->generation = sh->generation;
    }

    return spare;
}


ngx_int_t
ngx_http_tollgate_seed(uint64_t *seed, size_t size, ngx_log_t *log)
{
    ssize_t   n;
    ngx_fd_t  fd;

    fd = ngx_open_file((u_char *) "/dev/urandom", NGX_FILE_RDONLY,
                       NGX_FILE_OPEN, 0);

    if (fd == NGX_INVALID_FILE) {
        ngx_log_error(NGX_LOG_EMERG, log, ngx_errno,
                      ngx_open_file_n " \"/dev/urandom\" failed");
        return NGX_ERROR;
    }

    n = ngx_read_fd(fd, seed, size);

    if (n != (ssize_t) size) {
        ngx_log_error(NGX_LOG_EMERG, log, (n == -1) ? ngx_errno : 0,
                      ngx_read_fd_n " \"/dev/urandom\" failed");
    }

    if (ngx_close_file(fd) == NGX_FILE_ERROR) {
        ngx_log_error(NGX_LOG_ALERT, log, ngx_errno,
                      ngx_close_file_n " \"/dev/urandom\" failed");
    }

    return (n == (ssize_t) size) ? NGX_OK : NGX_ERROR;
}
