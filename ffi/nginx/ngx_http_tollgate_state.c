
/*
 * "nginx -t" is a process of its own and cannot see the zones of the server
 * that runs.  So a server writes down what they are, in a small file beside
 * its pid file, and a test that would change one fails as the reload would.
 *
 * One line a zone: name, size, rows, row_entries.
 */


#include "ngx_http_tollgate.h"


#define NGX_HTTP_TOLLGATE_STATE_SIZE  65536


static ngx_int_t ngx_http_tollgate_state_path(ngx_cycle_t *cycle, char *suffix,
    ngx_str_t *path);
static ngx_int_t ngx_http_tollgate_write_state(ngx_cycle_t *cycle,
    ngx_http_tollgate_main_conf_t *tmcf);
static ngx_int_t ngx_http_tollgate_check_state(ngx_cycle_t *cycle,
    ngx_http_tollgate_main_conf_t *tmcf);
static ngx_uint_t ngx_http_tollgate_runs(ngx_cycle_t *cycle);
static ngx_int_t ngx_http_tollgate_pid(ngx_cycle_t *cycle);
static ssize_t ngx_http_tollgate_read_file(u_char *name, u_char *buf,
    size_t size);


ngx_int_t
ngx_http_tollgate_init_module(ngx_cycle_t *cycle)
{
    ngx_uint_t                       i, k;
    ngx_http_tollgate_zone_t       **zones;
    ngx_http_tollgate_limit_t      **limits;
    ngx_http_tollgate_main_conf_t   *tmcf;

    tmcf = ngx_http_cycle_get_module_main_conf(cycle,
                                               ngx_http_tollgate_module);

    if (tmcf == NULL) {
        return NGX_OK;
    }

    zones = tmcf->zones.elts;

    for (i = 0; i < tmcf->zones.nelts; i++) {

        limits = zones[i]->limits.elts;

        for (k = 0; k < zones[i]->limits.nelts; k++) {
            if (ngx_http_tollgate_find_header(cycle, &limits[k]->key)
                != NGX_OK)
            {
                return NGX_ERROR;
            }
        }
    }

    if (ngx_test_config) {
        return ngx_http_tollgate_check_state(cycle, tmcf);
    }

    /*
     * without the file only the early warning of "nginx -t" is missing;
     * after an upgrade of the binary it is the new master's
     */

    if (ngx_new_binary == 0) {
        (void) ngx_http_tollgate_write_state(cycle, tmcf);
    }

    return NGX_OK;
}


void
ngx_http_tollgate_exit_master(ngx_cycle_t *cycle)
{
    ngx_int_t  pid;
    ngx_str_t  path;

    /*
     * nginx has deleted the pid file, or that with ".oldbin": after an upgrade
     * of the binary there is one of the new master, and so is the state
     */

    pid = ngx_http_tollgate_pid(cycle);

    if (ngx_new_binary || (pid > 0 && pid != (ngx_int_t) ngx_pid)) {
        return;
    }

    if (ngx_http_tollgate_state_path(cycle, "", &path) == NGX_OK) {
        (void) ngx_delete_file(path.data);
    }
}


static ngx_int_t
ngx_http_tollgate_state_path(ngx_cycle_t *cycle, char *suffix, ngx_str_t *path)
{
    ngx_core_conf_t  *ccf;

    ccf = (ngx_core_conf_t *) ngx_get_conf(cycle->conf_ctx, ngx_core_module);

    if (ccf->pid.len == 0 || ngx_strncmp(ccf->pid.data, "/dev/", 5) == 0) {
        return NGX_DECLINED;
    }

    path->len = ccf->pid.len + sizeof(".tollgate") + ngx_strlen(suffix);
    path->data = ngx_pnalloc(cycle->pool, path->len);
    if (path->data == NULL) {
        return NGX_ERROR;
    }

    (void) ngx_sprintf(path->data, "%V.tollgate%s%Z", &ccf->pid, suffix);

    return NGX_OK;
}


static ngx_int_t
ngx_http_tollgate_write_state(ngx_cycle_t *cycle,
    ngx_http_tollgate_main_conf_t *tmcf)
{
    u_char                    *buf, *p;
    ssize_t                    n;
    ngx_fd_t                   fd;
    ngx_int_t                  rc;
    ngx_str_t                  path, temp;
    ngx_uint_t                 i;
    ngx_http_tollgate_zone_t **zones;

    rc = ngx_http_tollgate_state_path(cycle, "", &path);

    if (rc != NGX_OK) {
        return rc;
    }

    zones = tmcf->zones.elts;

    if (tmcf->zones.nelts == 0) {
        (void) ngx_delete_file(path.data);
        return NGX_OK;
    }

    if (ngx_http_tollgate_state_path(cycle, ".new", &temp) != NGX_OK) {
        return NGX_ERROR;
    }

    buf = ngx_pnalloc(cycle->pool, tmcf->zones.nelts
                      * (NGX_HTTP_TOLLGATE_MAX_NAME + 3 * NGX_INT64_LEN + 4));
    if (buf == NULL) {
        return NGX_ERROR;
    }

    p = buf;

    for (i = 0; i < tmcf->zones.nelts; i++) {
        p = ngx_sprintf(p, "%V %uz %uL %uL\n", &zones[i]->name,
                        zones[i]->size, zones[i]->rows,
                        zones[i]->row_entries);
    }

    fd = ngx_open_file(temp.data, NGX_FILE_WRONLY, NGX_FILE_TRUNCATE,
                       NGX_FILE_DEFAULT_ACCESS);

    if (fd == NGX_INVALID_FILE) {
        ngx_log_error(NGX_LOG_NOTICE, cycle->log, ngx_errno,
                      ngx_open_file_n " \"%s\" failed, \"nginx -t\" will not "
                      "see the zones that run", temp.data);
        return NGX_ERROR;
    }

    n = ngx_write_fd(fd, buf, p - buf);

    if (ngx_close_file(fd) == NGX_FILE_ERROR
        || n != p - buf
        || ngx_rename_file(temp.data, path.data) == NGX_FILE_ERROR)
    {
        ngx_log_error(NGX_LOG_NOTICE, cycle->log, ngx_errno,
                      "\"%s\" cannot be written, \"nginx -t\" will not "
                      "see the zones that run", path.data);

        (void) ngx_delete_file(temp.data);
        return NGX_ERROR;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_tollgate_check_state(ngx_cycle_t *cycle,
    ngx_http_tollgate_main_conf_t *tmcf)
{
    u_char                    *buf, *p, *end, *word[4], *words_end[4];
    ssize_t                    n;
    ngx_int_t                  rc, number[4];
    ngx_str_t                  path;
    ngx_uint_t                 i, k;
    ngx_http_tollgate_zone_t **zones;

    rc = ngx_http_tollgate_state_path(cycle, "", &path);

    if (rc == NGX_DECLINED || !ngx_http_tollgate_runs(cycle)) {
        return NGX_OK;
    }

    buf = ngx_pnalloc(cycle->pool, NGX_HTTP_TOLLGATE_STATE_SIZE);

    if (rc != NGX_OK || buf == NULL) {
        return NGX_ERROR;
    }

    n = ngx_http_tollgate_read_file(path.data, buf,
                                    NGX_HTTP_TOLLGATE_STATE_SIZE);

    if (n <= 0) {
        return NGX_OK;
    }

    zones = tmcf->zones.elts;
    end = buf + n;

    for (p = buf; p < end; p++) {

        for (k = 0; k < 4; k++) {

            word[k] = p;

            while (p < end && *p != ' ' && *p != '\n') {
                p++;
            }

            words_end[k] = p;

            if (k < 3) {

                if (p == end || *p != ' ') {
                    return NGX_OK;
                }

                p++;
            }

            number[k] = k ? ngx_atoi(word[k], words_end[k] - word[k]) : 0;

            if (number[k] == NGX_ERROR) {
                return NGX_OK;
            }
        }

        for (i = 0; i < tmcf->zones.nelts; i++) {

            if (zones[i]->name.len != (size_t) (words_end[0] - word[0])
                || ngx_strncmp(zones[i]->name.data, word[0],
                               zones[i]->name.len)
                   != 0)
            {
                continue;
            }

            if (ngx_http_tollgate_same_zone(cycle->log, zones[i],
                                            (size_t) number[1],
                                            (uint64_t) number[2],
                                            (uint64_t) number[3])
                != NGX_OK)
            {
                return NGX_ERROR;
            }
        }
    }

    return NGX_OK;
}


/* is there a server whose pid file this configuration names? */

static ngx_uint_t
ngx_http_tollgate_runs(ngx_cycle_t *cycle)
{
    ngx_int_t  pid;

    pid = ngx_http_tollgate_pid(cycle);

    return pid > 1 && (kill((pid_t) pid, 0) == 0 || ngx_errno == NGX_EPERM);
}


static ngx_int_t
ngx_http_tollgate_pid(ngx_cycle_t *cycle)
{
    u_char            buf[NGX_INT64_LEN + 2];
    ssize_t           n;
    ngx_core_conf_t  *ccf;

    ccf = (ngx_core_conf_t *) ngx_get_conf(cycle->conf_ctx, ngx_core_module);

    n = ngx_http_tollgate_read_file(ccf->pid.data, buf, sizeof(buf));

    while (n > 0 && (buf[n - 1] == LF || buf[n - 1] == CR)) {
        n--;
    }

    return (n > 0) ? ngx_atoi(buf, n) : NGX_ERROR;
}


static ssize_t
ngx_http_tollgate_read_file(u_char *name, u_char *buf, size_t size)
{
    ssize_t   n;
    ngx_fd_t  fd;

    fd = ngx_open_file(name, NGX_FILE_RDONLY, NGX_FILE_OPEN, 0);

    if (fd == NGX_INVALID_FILE) {
        return -1;
    }

    n = ngx_read_fd(fd, buf, size);

    (void) ngx_close_file(fd);

    return n;
}
