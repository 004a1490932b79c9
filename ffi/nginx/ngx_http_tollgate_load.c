
/*
 * Reading and compiling the rules file, which for hundreds of thousands of
 * rows takes a good part of a second.  The master does it while it reads its
 * configuration; a worker in a thread of its own that ends with the work, so
 * that its requests go on meanwhile.  The thread touches nothing but the
 * load and the zones' memory: no pool, no log, no cached time.  So a process
 * may end while its thread is at work.
 */


#include "ngx_http_tollgate.h"

#include <dlfcn.h>
#include <pthread.h>


#define NGX_HTTP_TOLLGATE_MAX_FILE   (256 * 1024 * 1024)
#define NGX_HTTP_TOLLGATE_STACK      (2 * 1024 * 1024)

/* a file that is written while it is read is read again */
#define NGX_HTTP_TOLLGATE_READS      5


static u_char *ngx_http_tollgate_read_all(ngx_http_tollgate_load_t *load,
    ngx_fd_t fd, size_t *len);
static void *ngx_http_tollgate_thread(void *data);


ngx_http_tollgate_load_t *
ngx_http_tollgate_create_load(ngx_http_tollgate_rules_t *rules)
{
    size_t                      size;
    ngx_uint_t                  i;
    ngx_http_tollgate_load_t   *load;
    ngx_http_tollgate_zone_t  **zones;

    size = sizeof(ngx_http_tollgate_load_t)
           + rules->zones.nelts * sizeof(tollgate_table)
           + rules->path.len + 1;

    load = ngx_calloc(size, ngx_cycle->log);
    if (load == NULL) {
        return NULL;
    }

    load->tables = (tollgate_table *) (load + 1);
    load->ntables = rules->zones.nelts;

    zones = rules->zones.elts;

    for (i = 0; i < load->ntables; i++) {
        load->tables[i] = zones[i]->table;
    }

    load->path.len = rules->path.len;
    load->path.data = (u_char *) (load->tables + load->ntables);
    ngx_memcpy(load->path.data, rules->path.data, rules->path.len);

    ngx_memcpy(load->seed, rules->seed, sizeof(load->seed));

    load->redis = rules->redis;
    load->result = NGX_ERROR;
    load->known = rules->file;

    return load;
}


void
ngx_http_tollgate_free_load(ngx_http_tollgate_load_t *load)
{
    tollgate_rules_free(load->compiled);
    ngx_free(load);
}


/* nanoseconds of the last change, and whether another could look the same */

void
ngx_http_tollgate_stat(ngx_file_info_t *fi, ngx_http_tollgate_file_t *file)
{
    uint64_t         now, grain;
    struct timespec  ts;

    ngx_memzero(file, sizeof(ngx_http_tollgate_file_t));

    file->mtime = (uint64_t) ngx_file_mtime(fi) * 1000000000;
    file->inode = ngx_file_uniq(fi);
    file->size = ngx_file_size(fi);

    grain = 2000000000;

#if (NGX_LINUX || NGX_FREEBSD)
    file->mtime += fi->st_mtim.tv_nsec;

    if (fi->st_mtim.tv_nsec) {
        grain = 50000000;
    }
#endif

    (void) clock_gettime(CLOCK_REALTIME, &ts);
    now = (uint64_t) ts.tv_sec * 1000000000 + ts.tv_nsec;

    file->fresh = (file->mtime <= now && now - file->mtime < grain);
}


/* NGX_OK: compiled; NGX_DECLINED: the same as known; NGX_ERROR: refused */

void
ngx_http_tollgate_read_rules(ngx_http_tollgate_load_t *load)
{
    size_t           len;
    u_char          *text;
    ngx_fd_t         fd;
    ngx_uint_t       i, tries;
    tollgate_status  status;

    len = 0;
    text = NULL;

    for (tries = 0; tries < NGX_HTTP_TOLLGATE_READS; tries++) {

        fd = open((const char *) load->path.data,
                  O_RDONLY|O_NONBLOCK|O_CLOEXEC);

        if (fd == NGX_INVALID_FILE) {
            load->err = ngx_errno;
            load->what = ngx_open_file_n " failed";

            /* a file that is there and not readable has a state of its own */

            ngx_memzero(&load->file, sizeof(ngx_http_tollgate_file_t));
            load->file.missing = 1;
            return;
        }

        text = ngx_http_tollgate_read_all(load, fd, &len);

        (void) ngx_close_file(fd);

        if (text || load->what) {
            break;
        }

        ngx_msleep(20);
    }

    if (text == NULL) {

        if (load->what == NULL) {
            load->what = "is being written all the time";
        }

        return;
    }

    load->file.crc32 = ngx_crc32_long(text, len);

    if (load->check_known
        && load->file.size == load->known.size
        && load->file.crc32 == load->known.crc32)
    {
        free(text);
        load->result = NGX_DECLINED;
        return;
    }

    status = tollgate_rules_parse((char *) text, len, load->seed,
                                  ngx_http_tollgate_unix_at_zero(),
                                  &load->compiled, load->message,
                                  sizeof(load->message));
    free(text);

    if (status != TOLLGATE_OK) {
        load->what = "is refused";
        return;
    }

    if (load->accept) {

        for (i = 0; i < load->ntables; i++) {

            if (tollgate_rules_accepts(load->compiled, &load->tables[i],
                                       load->message, sizeof(load->message))
                != TOLLGATE_OK)
            {
                load->what = "does not fit into its zone: see rows= and "
                             "row_entries= of \"tollgate_zone\"";
                return;
            }
        }
    }

    if (load->redis
        && tollgate_redis_accepts(load->redis, load->compiled, load->message,
                                  sizeof(load->message))
           != TOLLGATE_OK)
    {
        load->what = "has a limit that cannot be counted in Redis";
        return;
    }

    load->result = NGX_OK;
}


/* NULL without a reason: the file was changed meanwhile */

static u_char *
ngx_http_tollgate_read_all(ngx_http_tollgate_load_t *load, ngx_fd_t fd,
    size_t *len)
{
    u_char                    *text;
    ssize_t                    n;
    size_t                     size;
    ngx_file_info_t            fi;
    ngx_http_tollgate_file_t   after;

    if (ngx_fd_info(fd, &fi) == NGX_FILE_ERROR) {
        load->err = ngx_errno;
        load->what = ngx_fd_info_n " failed";
        return NULL;
    }

    ngx_http_tollgate_stat(&fi, &load->file);

    if (!ngx_is_file(&fi)) {
        load->what = "is not a file";
        return NULL;
    }

    if (ngx_file_size(&fi) > NGX_HTTP_TOLLGATE_MAX_FILE) {
        load->what = "is longer than 256 MiB";
        return NULL;
    }

    size = (size_t) ngx_file_size(&fi);

    text = malloc(size + 1);
    if (text == NULL) {
        load->err = ngx_errno;
        load->what = "finds no memory";
        return NULL;
    }

    for (*len = 0; *len <= size; *len += n) {

        n = read(fd, text + *len, size + 1 - *len);

        if (n == -1) {
            load->err = ngx_errno;
            load->what = ngx_read_fd_n " failed";
            free(text);
            return NULL;
        }

        if (n == 0) {
            break;
        }
    }

    if (ngx_fd_info(fd, &fi) == NGX_FILE_ERROR) {
        free(text);
        return NULL;
    }

    ngx_http_tollgate_stat(&fi, &after);

    if (*len != size
        || after.mtime != load->file.mtime
        || after.size != load->file.size)
    {
        free(text);
        return NULL;
    }

    return text;
}


ngx_int_t
ngx_http_tollgate_start_load(ngx_http_tollgate_load_t *load)
{
    int             err;
    sigset_t        all, old;
    pthread_t       thread;
    pthread_attr_t  attr;

    if (pthread_attr_init(&attr) != 0) {
        return NGX_ERROR;
    }

    (void) pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    (void) pthread_attr_setstacksize(&attr, NGX_HTTP_TOLLGATE_STACK);

    /* signals are the worker's own */

    sigfillset(&all);
    (void) pthread_sigmask(SIG_SETMASK, &all, &old);

    err = pthread_create(&thread, &attr, ngx_http_tollgate_thread, load);

    (void) pthread_sigmask(SIG_SETMASK, &old, NULL);
    (void) pthread_attr_destroy(&attr);

    return err ? NGX_ERROR : NGX_OK;
}


static void *
ngx_http_tollgate_thread(void *data)
{
    ngx_http_tollgate_load_t  *load = data;

    ngx_http_tollgate_read_rules(load);

    /* pairs with the load in ngx_http_tollgate_load_done() */

    __atomic_store_n(&load->done, 1, __ATOMIC_RELEASE);

    return NULL;
}


ngx_uint_t
ngx_http_tollgate_load_done(ngx_http_tollgate_load_t *load)
{
    return __atomic_load_n(&load->done, __ATOMIC_ACQUIRE);
}


/*
 * The process ends and does not wait for its thread, which may have seconds
 * of work.  The load is left to the thread, and the code that it runs stays
 * mapped, though nginx unloads its modules before the end.
 */

ngx_int_t
ngx_http_tollgate_abandon_load(void)
{
    Dl_info  module, nginx;

    if (ngx_process != NGX_PROCESS_WORKER && !ngx_terminate && !ngx_quit) {
        return NGX_DECLINED;
    }

    if (dladdr((void *) ngx_http_tollgate_thread, &module) == 0
        || dladdr((void *) ngx_destroy_pool, &nginx) == 0)
    {
        return NGX_DECLINED;
    }

    if (module.dli_fbase != nginx.dli_fbase
        && dlopen(module.dli_fname, RTLD_NOW|RTLD_NOLOAD|RTLD_NODELETE)
           == NULL)
    {
        return NGX_DECLINED;
    }

    return NGX_OK;
}
