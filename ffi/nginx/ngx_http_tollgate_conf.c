
/*
 * The directives "tollgate_zone" and "tollgate": everything is parsed here,
 * once.  What a limit may be is the library's to say; its message, with the
 * legal range, is shown as it is.
 */


#include "ngx_http_tollgate.h"


#define NGX_HTTP_TOLLGATE_MIN_ZONE     65536
#define NGX_HTTP_TOLLGATE_ROW_ENTRIES  128
#define NGX_HTTP_TOLLGATE_TEXT         256


static char *ngx_http_tollgate_compile_limit(ngx_conf_t *cf,
    ngx_http_tollgate_limit_t *limit, ngx_str_t *rate, ngx_str_t *burst,
    ngx_str_t *algorithm, ngx_uint_t delay);
static char *ngx_http_tollgate_compile_value(ngx_conf_t *cf, ngx_str_t *text,
    ngx_http_tollgate_value_t *value);
static char *ngx_http_tollgate_add_limit(ngx_conf_t *cf,
    ngx_http_tollgate_conf_t *tlcf, ngx_http_tollgate_limit_t *limit);


char *
ngx_http_tollgate_zone(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    off_t                      size;
    ngx_int_t                  n;
    ngx_str_t                 *value, s;
    ngx_uint_t                 i;
    ngx_http_tollgate_zone_t  *zone;

    value = cf->args->elts;

    size = 0;

    if (ngx_http_tollgate_check_name(&value[1]) != NGX_OK) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid zone name \"%V\": 1 to %d letters, "
                           "digits and any of \"_.:/#-\"",
                           &value[1], NGX_HTTP_TOLLGATE_MAX_NAME);
        return NGX_CONF_ERROR;
    }

    for (i = 2; i < cf->args->nelts; i++) {

        if (ngx_strncmp(value[i].data, "size=", 5) == 0) {

            s.data = value[i].data + 5;
            s.len = value[i].len - 5;

            size = ngx_parse_offset(&s);

            if (size <= 0 || size > NGX_MAX_SIZE_T_VALUE / 2) {
                ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                                   "invalid zone size \"%V\": a number of "
                                   "bytes, as 65536, 64k or 10m, from %d",
                                   &value[i], NGX_HTTP_TOLLGATE_MIN_ZONE);
                return NGX_CONF_ERROR;
            }

            if (size < NGX_HTTP_TOLLGATE_MIN_ZONE) {
                ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                                   "zone \"%V\" is too small: \"%V\" is less "
                                   "than %d bytes", &value[1], &value[i],
                                   NGX_HTTP_TOLLGATE_MIN_ZONE);
                return NGX_CONF_ERROR;
            }

            /* whole pages, as the zone is made of them */
            size = ngx_align(size, ngx_pagesize);
        }
    }

    if (size == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"%V\" must have \"size\" parameter", &cmd->name);
        return NGX_CONF_ERROR;
    }

    zone = ngx_http_tollgate_add_zone(cf, &value[1], (size_t) size);
    if (zone == NULL) {
        return NGX_CONF_ERROR;
    }

    if (zone->size) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "duplicate zone \"%V\"", &value[1]);
        return NGX_CONF_ERROR;
    }

    zone->size = (size_t) size;
    zone->file = cf->conf_file->file.name.data;
    zone->line = cf->conf_file->line;

    for (i = 2; i < cf->args->nelts; i++) {

        if (ngx_strncmp(value[i].data, "size=", 5) == 0) {
            continue;
        }

        if (ngx_strncmp(value[i].data, "rows=", 5) == 0) {

            n = ngx_atoi(value[i].data + 5, value[i].len - 5);

            if (n > 0) {
                zone->rows = n;
                continue;
            }

        } else if (ngx_strncmp(value[i].data, "row_entries=", 12) == 0) {

            n = ngx_atoi(value[i].data + 12, value[i].len - 12);

            if (n > 0) {
                zone->row_entries = n;
                continue;
            }
        }

        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid parameter \"%V\": size=size, and rows= "
                           "and row_entries= with a number from 1", &value[i]);
        return NGX_CONF_ERROR;
    }

    if (zone->rows == 0 && zone->row_entries) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"row_entries\" of zone \"%V\" needs \"rows\"",
                           &value[1]);
        return NGX_CONF_ERROR;
    }

    if (zone->rows && zone->row_entries == 0) {
        zone->row_entries = NGX_HTTP_TOLLGATE_ROW_ENTRIES;
    }

    if (ngx_http_tollgate_check_reload(cf, zone) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


char *
ngx_http_tollgate(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_tollgate_conf_t *tlcf = conf;

    char                       *rv;
    ngx_int_t                   n;
    ngx_str_t                  *value, zone, rate, burst, algorithm, cost, s;
    ngx_uint_t                  i, delay;
    ngx_http_tollgate_limit_t  *limit;

    value = cf->args->elts;

    if (cf->args->nelts == 2 && ngx_strcmp(value[1].data, "off") == 0) {

        if (tlcf->set) {
            return "cannot be \"off\" beside limits";
        }

        tlcf->set = 1;

        return NGX_CONF_OK;
    }

    if (tlcf->set && tlcf->nlimits == 0) {
        return "cannot be \"off\" beside limits";
    }

    limit = ngx_pcalloc(cf->pool, sizeof(ngx_http_tollgate_limit_t));
    if (limit == NULL) {
        return NGX_CONF_ERROR;
    }

    limit->cost = 1;
    limit->status = NGX_HTTP_TOO_MANY_REQUESTS;
    limit->status_over = 422;
    limit->file = cf->conf_file->file.name.data;
    limit->line = cf->conf_file->line;

    ngx_str_null(&zone);
    ngx_str_null(&rate);
    ngx_str_null(&burst);
    ngx_str_null(&algorithm);
    ngx_str_null(&cost);
    delay = 0;

    for (i = 1; i < cf->args->nelts; i++) {

        if (ngx_strcmp(value[i].data, "delay") == 0) {
            delay = 1;
            continue;
        }

        s.data = (u_char *) ngx_strchr(value[i].data, '=');

        if (s.data == NULL || s.data + 1 == value[i].data + value[i].len) {
            goto invalid;
        }

        s.data++;
        s.len = value[i].data + value[i].len - s.data;

        if (ngx_strncmp(value[i].data, "zone=", 5) == 0) {
            zone = s;
            continue;
        }

        if (ngx_strncmp(value[i].data, "key=", 4) == 0) {
            limit->key_text = s;
            continue;
        }

        if (ngx_strncmp(value[i].data, "rate=", 5) == 0) {
            rate = s;
            continue;
        }

        if (ngx_strncmp(value[i].data, "burst=", 6) == 0) {
            burst = s;
            continue;
        }

        if (ngx_strncmp(value[i].data, "algorithm=", 10) == 0) {
            algorithm = s;
            continue;
        }

        if (ngx_strncmp(value[i].data, "cost=", 5) == 0) {
            cost = s;
            continue;
        }

        if (ngx_strncmp(value[i].data, "name=", 5) == 0) {
            limit->name = s;
            limit->named = 1;
            continue;
        }

        if (ngx_strncmp(value[i].data, "status=", 7) == 0
            || ngx_strncmp(value[i].data, "status_over=", 12) == 0)
        {
            n = ngx_atoi(s.data, s.len);

            if (n < 400 || n > 599) {
                ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                                   "\"%V\" must be between 400 and 599",
                                   &value[i]);
                return NGX_CONF_ERROR;
            }

            if (value[i].data[6] == '=') {
                limit->status = n;

            } else {
                limit->status_over = n;
            }

            continue;
        }

    invalid:

        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid parameter \"%V\": zone=, key=, rate=, "
                           "burst=, algorithm=, cost=, delay, name=, status= "
                           "and status_over= are legal", &value[i]);
        return NGX_CONF_ERROR;
    }

    if (zone.len == 0 || limit->key_text.len == 0 || rate.len == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"%V\" must have \"%s\" parameter", &cmd->name,
                           zone.len == 0 ? "zone"
                           : limit->key_text.len == 0 ? "key" : "rate");
        return NGX_CONF_ERROR;
    }

    rv = ngx_http_tollgate_compile_limit(cf, limit, &rate, &burst, &algorithm,
                                         delay);
    if (rv != NGX_CONF_OK) {
        return rv;
    }

    rv = ngx_http_tollgate_compile_value(cf, &limit->key_text, &limit->key);
    if (rv != NGX_CONF_OK) {
        return rv;
    }

    if (cost.len) {

        n = ngx_atoi(cost.data, cost.len);

        if (n != NGX_ERROR) {
            limit->cost = n;

            if (limit->cost > limit->burst) {
                ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                                   "cost %uL never fits into limit \"%V\", "
                                   "which admits %uL at most", limit->cost,
                                   &limit->limit_text, limit->burst);
                return NGX_CONF_ERROR;
            }

        } else if (cost.data[0] == '$') {
            limit->variable_cost = 1;

            rv = ngx_http_tollgate_compile_value(cf, &cost,
                                                 &limit->cost_value);
            if (rv != NGX_CONF_OK) {
                return rv;
            }

        } else {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid cost \"%V\": a whole number "
                               "or a variable", &cost);
            return NGX_CONF_ERROR;
        }
    }

    limit->zone = ngx_http_tollgate_add_zone(cf, &zone, 0);
    if (limit->zone == NULL) {
        return NGX_CONF_ERROR;
    }

    rv = ngx_http_tollgate_name_limit(cf, limit);
    if (rv != NGX_CONF_OK) {
        return rv;
    }

    return ngx_http_tollgate_add_limit(cf, tlcf, limit);
}


static char *
ngx_http_tollgate_compile_limit(ngx_conf_t *cf,
    ngx_http_tollgate_limit_t *limit, ngx_str_t *rate, ngx_str_t *burst,
    ngx_str_t *algorithm, ngx_uint_t delay)
{
    char                   message[NGX_HTTP_TOLLGATE_TEXT];
    size_t                 len;
    u_char                *p;
    uint32_t               number;
    ngx_str_t              text;
    tollgate_status        status;
    tollgate_limit_config  config;

    /* what waits is a queue: "delay" alone means the leaky bucket */
    number = delay ? TOLLGATE_LEAKY_BUCKET : TOLLGATE_TOKEN_BUCKET;

    if (algorithm->len
        && tollgate_algorithm_parse((char *) algorithm->data, algorithm->len,
                                    &number)
           != TOLLGATE_OK)
    {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "unknown algorithm \"%V\": token_bucket, "
                           "leaky_bucket, fixed_window, sliding_window, "
                           "sliding_log or concurrency", algorithm);
        return NGX_CONF_ERROR;
    }

    text.len = rate->len + burst->len + (burst->len ? 7 : 0);
    text.data = ngx_pnalloc(cf->pool, text.len + NGX_HTTP_TOLLGATE_TEXT);
    if (text.data == NULL) {
        return NGX_CONF_ERROR;
    }

    p = ngx_cpymem(text.data, rate->data, rate->len);

    if (burst->len) {
        p = ngx_cpymem(p, " burst ", 7);
        p = ngx_cpymem(p, burst->data, burst->len);
    }

    message[0] = '\0';

    status = tollgate_limit_parse((char *) text.data, text.len, number,
                                  &limit->limit, message, sizeof(message));

    if (status != TOLLGATE_OK) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "invalid limit \"%V\": %s",
                           &text, message[0] ? message
                                             : tollgate_status_str(status));
        return NGX_CONF_ERROR;
    }

    config.struct_size = sizeof(tollgate_limit_config);

    if (tollgate_limit_describe(&limit->limit, &config) != TOLLGATE_OK
        || tollgate_limit_format(&limit->limit, (char *) p,
                                 NGX_HTTP_TOLLGATE_TEXT, &len)
           != TOLLGATE_OK)
    {
        return "has a limit that cannot be described";
    }

    limit->limit_text.data = p;
    limit->limit_text.len = len;
    limit->burst = config.burst;
    limit->algorithm = config.algorithm;
    limit->concurrency = (config.algorithm == TOLLGATE_CONCURRENCY);

    if (delay) {

        if (config.algorithm != TOLLGATE_LEAKY_BUCKET) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "\"delay\" needs algorithm=leaky_bucket, "
                               "%s never makes a request wait",
                               tollgate_algorithm_str(config.algorithm));
            return NGX_CONF_ERROR;
        }

        limit->delay = 1;
    }

    return NGX_CONF_OK;
}


static char *
ngx_http_tollgate_compile_value(ngx_conf_t *cf, ngx_str_t *text,
    ngx_http_tollgate_value_t *value)
{
    size_t                             i;
    ngx_str_t                          name;
    ngx_http_compile_complex_value_t   ccv;

    value->index = NGX_ERROR;

    if (text->len > 1 && text->data[0] == '$') {

        name.data = text->data + 1;
        name.len = text->len - 1;

        if (name.len > 2
            && name.data[0] == '{' && name.data[name.len - 1] == '}')
        {
            name.data++;
            name.len -= 2;
        }

        for (i = 0; i < name.len; i++) {

            if ((name.data[i] < 'a' || name.data[i] > 'z')
                && (name.data[i] < 'A' || name.data[i] > 'Z')
                && (name.data[i] < '0' || name.data[i] > '9')
                && name.data[i] != '_')
            {
                break;
            }
        }

        /* $1 and the like are no variables but captures */

        if (i == name.len && (name.data[0] < '1' || name.data[0] > '9')) {

            value->index = ngx_http_get_variable_index(cf, &name);

            return (value->index == NGX_ERROR) ? NGX_CONF_ERROR
                                               : NGX_CONF_OK;
        }
    }

    ngx_memzero(&ccv, sizeof(ngx_http_compile_complex_value_t));

    ccv.cf = cf;
    ccv.value = text;
    ccv.complex_value = &value->complex;

    if (ngx_http_compile_complex_value(&ccv) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


/* limits of one zone are checked in one call, so they stand side by side */

static char *
ngx_http_tollgate_add_limit(ngx_conf_t *cf, ngx_http_tollgate_conf_t *tlcf,
    ngx_http_tollgate_limit_t *limit)
{
    ngx_uint_t  i, at;

    if (tlcf->limits == NULL) {
        tlcf->limits = ngx_palloc(cf->pool, NGX_HTTP_TOLLGATE_MAX_LIMITS
                                  * sizeof(ngx_http_tollgate_limit_t *));
        if (tlcf->limits == NULL) {
            return NGX_CONF_ERROR;
        }
    }

    if (tlcf->nlimits == NGX_HTTP_TOLLGATE_MAX_LIMITS) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "more than %d limits in one place",
                           NGX_HTTP_TOLLGATE_MAX_LIMITS);
        return NGX_CONF_ERROR;
    }

    at = tlcf->nlimits;

    for (i = 0; i < tlcf->nlimits; i++) {

        if (tlcf->limits[i]->zone != limit->zone) {
            continue;
        }

        at = i + 1;

        if (tlcf->limits[i]->scope == limit->scope) {
            return "is duplicate";
        }
    }

    for (i = tlcf->nlimits; i > at; i--) {
        tlcf->limits[i] = tlcf->limits[i - 1];
    }

    tlcf->limits[at] = limit;

    tlcf->set = 1;
    tlcf->nlimits++;
    tlcf->nholds += limit->concurrency;

    return NGX_CONF_OK;
}
