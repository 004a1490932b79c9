
/*
 * "tollgate_redis": where the limits of policies with "store": "redis" are
 * counted.  What is legal is the library's to say.
 *
 * A worker has an engine of the library's for each zone that the rules are
 * asked in: made when the worker starts, and drained when it ends.
 */


#include "ngx_http_tollgate.h"


/* pages of its own, for counters that all workers share and a reload keeps */
#define NGX_HTTP_TOLLGATE_REDIS_ZONE  65536

/*
 * A worker takes no request before its connection is there, or until it is
 * clear that there will be none; and one that ends gives back what it holds.
 * Neither may take long.
 */
#define NGX_HTTP_TOLLGATE_GREETING    100
#define NGX_HTTP_TOLLGATE_FAREWELL    200

/* a word, the server's own words, and how things are */
#define NGX_HTTP_TOLLGATE_CAUSE       256


static ngx_int_t ngx_http_tollgate_redis_address(ngx_conf_t *cf,
    ngx_str_t *text, ngx_array_t *addresses);
static ngx_int_t ngx_http_tollgate_redis_parameter(ngx_conf_t *cf,
    ngx_http_tollgate_redis_t *redis, ngx_str_t *text);
static ngx_int_t ngx_http_tollgate_init_redis_zone(ngx_shm_zone_t *shm_zone,
    void *data);
static ngx_http_tollgate_engine_t *ngx_http_tollgate_create_engine(
    ngx_cycle_t *cycle, ngx_http_tollgate_redis_t *redis,
    ngx_http_tollgate_zone_t *zone);


static ngx_uint_t  ngx_http_tollgate_redis_tag;


char *
ngx_http_tollgate_redis(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_tollgate_main_conf_t *tmcf = conf;

    char                        message[512];
    ngx_str_t                  *value, name;
    ngx_uint_t                  i;
    ngx_array_t                 addresses;
    ngx_shm_zone_t             *shm_zone;
    tollgate_redis             *engine;
    ngx_http_tollgate_redis_t  *redis;

    if (tmcf->redis) {
        return "is duplicate";
    }

    redis = ngx_pcalloc(cf->pool, sizeof(ngx_http_tollgate_redis_t));
    if (redis == NULL) {
        return NGX_CONF_ERROR;
    }

    value = cf->args->elts;

    redis->name = value[1];
    redis->file = cf->conf_file->file.name.data;
    redis->line = cf->conf_file->line;
    redis->config.struct_size = sizeof(tollgate_redis_config);
    redis->config.instance = TOLLGATE_NO_INSTANCE;

    if (ngx_array_init(&addresses, cf->pool, 2, sizeof(tollgate_bytes))
        != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    for (i = 1; i < cf->args->nelts; i++) {

        if (ngx_strncmp(value[i].data, "unix:", 5) == 0
            || ngx_strchr(value[i].data, '=') == NULL)
        {
            if (ngx_http_tollgate_redis_address(cf, &value[i], &addresses)
                != NGX_OK)
            {
                return NGX_CONF_ERROR;
            }

        } else if (ngx_http_tollgate_redis_parameter(cf, redis, &value[i])
                   != NGX_OK)
        {
            return NGX_CONF_ERROR;
        }
    }

    if (addresses.nelts == 0) {
        return "needs an address: host:port or unix:/path";
    }

    redis->config.addresses = addresses.elts;
    redis->config.address_count = addresses.nelts;

    message[0] = '\0';

    if (tollgate_redis_create(&redis->config, &engine, message,
                              sizeof(message))
        != TOLLGATE_OK)
    {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "\"%V\": %s", &cmd->name,
                           message);
        return NGX_CONF_ERROR;
    }

    tollgate_redis_free(engine);

    ngx_str_set(&name, "tollgate_redis");

    shm_zone = ngx_shared_memory_add(cf, &name, NGX_HTTP_TOLLGATE_REDIS_ZONE,
                                     &ngx_http_tollgate_redis_tag);
    if (shm_zone == NULL) {
        return NGX_CONF_ERROR;
    }

    shm_zone->init = ngx_http_tollgate_init_redis_zone;
    shm_zone->data = redis;

    tmcf->redis = redis;

    return NGX_CONF_OK;
}


/* names are looked up now: a worker has no time to */

static ngx_int_t
ngx_http_tollgate_redis_address(ngx_conf_t *cf, ngx_str_t *text,
    ngx_array_t *addresses)
{
    ngx_url_t        u;
    ngx_uint_t       i;
    tollgate_bytes  *address;

    ngx_memzero(&u, sizeof(ngx_url_t));

    u.url = *text;
    u.default_port = 6379;

    if (ngx_parse_url(cf->pool, &u) != NGX_OK || u.naddrs == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "%s in address \"%V\": host:port or unix:/path",
                           u.err ? u.err : "no address", text);
        return NGX_ERROR;
    }

    for (i = 0; i < u.naddrs; i++) {

        address = ngx_array_push(addresses);
        if (address == NULL) {
            return NGX_ERROR;
        }

        address->data = u.addrs[i].name.data;
        address->len = u.addrs[i].name.len;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_tollgate_redis_parameter(ngx_conf_t *cf,
    ngx_http_tollgate_redis_t *redis, ngx_str_t *text)
{
    ngx_int_t               n;
    ngx_str_t               s;
    tollgate_redis_config  *config;

    config = &redis->config;

    s.data = (u_char *) ngx_strchr(text->data, '=') + 1;
    s.len = text->data + text->len - s.data;

    if (s.len == 0) {
        goto invalid;
    }

    if (ngx_strncmp(text->data, "password=", 9) == 0) {
        config->password.data = s.data;
        config->password.len = s.len;
        return NGX_OK;
    }

    if (ngx_strncmp(text->data, "username=", 9) == 0) {
        config->username.data = s.data;
        config->username.len = s.len;
        return NGX_OK;
    }

    if (ngx_strncmp(text->data, "region=", 7) == 0) {
        config->region.data = s.data;
        config->region.len = s.len;
        return NGX_OK;
    }

    if (ngx_strncmp(text->data, "cluster=", 8) == 0) {

        if (ngx_strcmp(s.data, "on") == 0) {
            config->flags |= TOLLGATE_REDIS_CLUSTER;
            return NGX_OK;
        }

        if (ngx_strcmp(s.data, "off") == 0) {
            return NGX_OK;
        }

        goto invalid;
    }

    if (ngx_strncmp(text->data, "timeout=", 8) == 0) {

        n = ngx_parse_time(&s, 0);

        if (n < 1 || n > 10000) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "\"%V\" must be between 1ms and 10s", text);
            return NGX_ERROR;
        }

        config->timeout_ns = (uint64_t) n * 1000000;
        return NGX_OK;
    }

    n = ngx_atoi(s.data, s.len);

    if (n == NGX_ERROR) {
        goto invalid;
    }

    if (ngx_strncmp(text->data, "db=", 3) == 0 && n <= 65535) {
        config->database = (uint32_t) n;
        return NGX_OK;
    }

    if (ngx_strncmp(text->data, "instances=", 10) == 0 && n > 0) {
        config->instances = n;
        return NGX_OK;
    }

    if (ngx_strncmp(text->data, "instance=", 9) == 0) {
        config->instance = n;
        return NGX_OK;
    }

    if (ngx_strncmp(text->data, "keepalive=", 10) == 0) {

        if (n == 1) {
            return NGX_OK;
        }

        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"%V\": a worker sends all calls over one "
                           "connection to a server, so keepalive=1", text);
        return NGX_ERROR;
    }

invalid:

    /* what stands behind a password's name is never shown */

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "invalid parameter \"%*s\": host:port or unix:/path, "
                       "password=, username=, db= up to 65535, timeout=, "
                       "keepalive=1, instances=, instance=, cluster=on|off "
                       "and region=part/whole are legal",
                       s.data - text->data, text->data);

    return NGX_ERROR;
}


ngx_int_t
ngx_http_tollgate_check_redis(ngx_conf_t *cf)
{
    ngx_core_conf_t                *ccf;
    ngx_http_tollgate_redis_t      *redis;
    ngx_http_tollgate_main_conf_t  *tmcf;

    tmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_tollgate_module);

    redis = tmcf->redis;

    if (redis == NULL) {
        return NGX_OK;
    }

    if (tmcf->rules == NULL) {
        ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                      "\"tollgate_redis\" needs \"tollgate_rules\", whose "
                      "policies it counts in %s:%ui", redis->file,
                      redis->line);
        return NGX_ERROR;
    }

    /* "nginx -t" shows nothing below a warning */

    if (redis->config.instances == 0) {
        ngx_log_error(NGX_LOG_WARN, cf->log, 0,
                      "\"tollgate_redis\" has no \"instances=\": while the "
                      "store is away, this server admits the whole of each "
                      "limit, and so does every other one; say how many share "
                      "them, or instances=1, in %s:%ui", redis->file,
                      redis->line);
    }

    ccf = (ngx_core_conf_t *) ngx_get_conf(cf->cycle->conf_ctx,
                                           ngx_core_module);

    /* may be written further down, and "auto" is not known yet */

    redis->config.workers = (ccf->worker_processes > 0) ? ccf->worker_processes
                                                        : 1;

    return NGX_OK;
}


static ngx_int_t
ngx_http_tollgate_init_redis_zone(ngx_shm_zone_t *shm_zone, void *data)
{
    ngx_http_tollgate_redis_t  *old = data;

    size_t                         size, align;
    ngx_slab_pool_t               *shpool;
    ngx_http_tollgate_redis_t     *redis;
    ngx_http_tollgate_redis_sh_t  *sh;

    redis = shm_zone->data;

    if (old) {
        redis->sh = old->sh;
        return NGX_OK;
    }

    shpool = (ngx_slab_pool_t *) shm_zone->shm.addr;

    if (shm_zone->shm.exists) {
        redis->sh = shpool->data;
        return NGX_OK;
    }

    if (tollgate_store_metrics_layout(&size, &align) != TOLLGATE_OK) {
        return NGX_ERROR;
    }

    sh = ngx_slab_calloc(shpool, sizeof(ngx_http_tollgate_redis_sh_t));
    if (sh == NULL) {
        return NGX_ERROR;
    }

    /* whole pages are aligned as lines are */

    sh->metrics = ngx_slab_calloc(shpool, ngx_max(size, ngx_pagesize));
    if (sh->metrics == NULL) {
        return NGX_ERROR;
    }

    shpool->data = sh;
    redis->sh = sh;

    return NGX_OK;
}


/*
 * Once a second, whichever worker has something to say.  The time that a
 * worker has cached may be a second behind another one's.
 */

ngx_uint_t
ngx_http_tollgate_may_log(ngx_http_tollgate_redis_t *redis)
{
    ngx_atomic_t  was, now;

    was = redis->sh->logged_at;
    now = ngx_time();

    return was != now && was != now + 1
           && ngx_atomic_cmp_set(&redis->sh->logged_at, was, now);
}


/*
 * Requests are decided without Redis.  Why is told here, as this may be the
 * only line of this second.
 */

void
ngx_http_tollgate_tell_fallback(ngx_http_tollgate_engine_t *engine,
    ngx_log_t *log)
{
    u_char                cause[NGX_HTTP_TOLLGATE_CAUSE], *p, *last;
    ngx_err_t             err;
    ngx_uint_t            i;
    tollgate_redis_state  state;

    if (!ngx_http_tollgate_may_log(engine->conf)
        || tollgate_redis_read_state(engine->redis, ngx_http_tollgate_now(),
                                     &state)
           != TOLLGATE_OK)
    {
        return;
    }

    p = cause;
    last = cause + sizeof(cause);
    err = 0;

    if (state.trouble.len) {

        p = ngx_slprintf(p, last, "%*s", state.trouble.len,
                         state.trouble.data);

        for (i = 0; i < (ngx_uint_t) (p - cause); i++) {
            if (cause[i] == '_') {
                cause[i] = ' ';
            }
        }

        if (state.words.len) {
            p = ngx_slprintf(p, last, " (%*s)", state.words.len,
                             state.words.data);
        }

    } else if (state.ready) {
        p = ngx_slprintf(p, last, "more wait than may");
    }

    if (!state.ready) {
        err = engine->err;
        engine->down = 1;

        if (state.trouble.len != sizeof("not_connected") - 1
            || ngx_memcmp(state.trouble.data, "not_connected",
                          sizeof("not_connected") - 1)
               != 0)
        {
            p = ngx_slprintf(p, last, "%snot connected",
                             (p == cause) ? "" : ", ");
        }
    }

    if (state.breaker != TOLLGATE_BREAKER_CLOSED) {
        p = ngx_slprintf(p, last, ", the breaker is open");
    }

    ngx_log_error(NGX_LOG_ERR, log, err,
                  "policies of zone \"%V\" are decided without Redis \"%V\", "
                  "as their on_store_error says: %*s", &engine->zone->name,
                  &engine->conf->name, p - cause, cause);
}


ngx_int_t
ngx_http_tollgate_start_engines(ngx_cycle_t *cycle,
    ngx_http_tollgate_main_conf_t *tmcf)
{
    ngx_uint_t                   i;
    ngx_core_conf_t             *ccf;
    ngx_http_tollgate_zone_t   **zones;
    ngx_http_tollgate_redis_t   *redis;

    redis = tmcf->redis;

    if (redis == NULL) {
        return NGX_OK;
    }

    ccf = (ngx_core_conf_t *) ngx_get_conf(cycle->conf_ctx, ngx_core_module);

    redis->config.workers = (ngx_process == NGX_PROCESS_SINGLE)
                            ? 1 : (uint32_t) ccf->worker_processes;

    zones = tmcf->rules->zones.elts;

    for (i = 0; i < tmcf->rules->zones.nelts; i++) {

        zones[i]->engine = ngx_http_tollgate_create_engine(cycle, redis,
                                                           zones[i]);
        if (zones[i]->engine == NULL) {
            return NGX_ERROR;
        }

        ngx_http_tollgate_pump(zones[i]->engine, NGX_HTTP_TOLLGATE_GREETING,
                               1);
        ngx_http_tollgate_run(zones[i]->engine);
    }

    return NGX_OK;
}


static ngx_http_tollgate_engine_t *
ngx_http_tollgate_create_engine(ngx_cycle_t *cycle,
    ngx_http_tollgate_redis_t *redis, ngx_http_tollgate_zone_t *zone)
{
    char                         message[512];
    ngx_uint_t                   i;
    ngx_http_tollgate_engine_t  *engine;

    engine = ngx_pcalloc(cycle->pool, sizeof(ngx_http_tollgate_engine_t));
    if (engine == NULL) {
        return NULL;
    }

    if (ngx_http_tollgate_seed(&redis->config.seed, sizeof(uint64_t),
                               cycle->log)
        != NGX_OK)
    {
        return NULL;
    }

    message[0] = '\0';

    if (tollgate_redis_create(&redis->config, &engine->redis, message,
                              sizeof(message))
        != TOLLGATE_OK)
    {
        ngx_log_error(NGX_LOG_EMERG, cycle->log, 0,
                      "\"tollgate_redis\": %s in %s:%ui", message,
                      redis->file, redis->line);
        return NULL;
    }

    engine->conf = redis;
    engine->zone = zone;
    engine->log = cycle->log;

    /* what connections have to say is said by us, once a second at most */

    engine->quiet = *cycle->log;
    engine->quiet.log_level = NGX_LOG_ALERT;

    for (i = 0; i < NGX_HTTP_TOLLGATE_MAX_LINKS; i++) {
        engine->links[i].engine = engine;
        engine->links[i].number = i;
    }

    return engine;
}


void
ngx_http_tollgate_exit_process(ngx_cycle_t *cycle)
{
    ngx_uint_t                       i;
    ngx_http_tollgate_zone_t       **zones;
    ngx_http_tollgate_engine_t      *engine;
    ngx_http_tollgate_main_conf_t   *tmcf;

    tmcf = ngx_http_cycle_get_module_main_conf(cycle,
                                               ngx_http_tollgate_module);

    if (tmcf == NULL || tmcf->rules == NULL) {
        return;
    }

    zones = tmcf->rules->zones.elts;

    for (i = 0; i < tmcf->rules->zones.nelts; i++) {

        engine = zones[i]->engine;

        if (engine == NULL) {
            continue;
        }

        zones[i]->engine = NULL;

        (void) tollgate_redis_drain(engine->redis, &zones[i]->table,
                                    engine->conf->sh->metrics,
                                    ngx_http_tollgate_now());

        ngx_http_tollgate_pump(engine, NGX_HTTP_TOLLGATE_FAREWELL, 0);
        ngx_http_tollgate_hang_up(engine);

        tollgate_redis_free(engine->redis);
    }
}
