
/*
 * Names.  A limit's name is its identity: in the zone, in the counters, in
 * the RateLimit fields.  What has one name is one limit, wherever it is
 * written, before and after a reload.
 */


#include "ngx_http_tollgate.h"


static char *ngx_http_tollgate_default_name(ngx_conf_t *cf,
    ngx_http_tollgate_limit_t *limit);
static ngx_http_tollgate_limit_t *ngx_http_tollgate_find_limit(
    ngx_http_tollgate_zone_t *zone, ngx_str_t *name);
static ngx_uint_t ngx_http_tollgate_name_char(u_char c);


char *
ngx_http_tollgate_name_limit(ngx_conf_t *cf, ngx_http_tollgate_limit_t *limit)
{
    char                       *rv;
    ngx_uint_t                  i;
    ngx_http_tollgate_limit_t  *same, **slot;

    if (!limit->named) {
        rv = ngx_http_tollgate_default_name(cf, limit);
        if (rv != NGX_CONF_OK) {
            return rv;
        }

    } else {

        if (ngx_http_tollgate_check_name(&limit->name) != NGX_OK) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid name \"%V\": 1 to %d letters, "
                               "digits and any of \"_.:/#-\"",
                               &limit->name, NGX_HTTP_TOLLGATE_MAX_NAME);
            return NGX_CONF_ERROR;
        }

        same = ngx_http_tollgate_find_limit(limit->zone, &limit->name);

        if (same
            && (same->limit_text.len != limit->limit_text.len
                || ngx_strncmp(same->limit_text.data, limit->limit_text.data,
                               limit->limit_text.len)
                   != 0))
        {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "limit \"%V\" of zone \"%V\" is \"%V\", but "
                               "\"%V\" in %s:%ui; limits that differ need "
                               "different names", &limit->name,
                               &limit->zone->name, &limit->limit_text,
                               &same->limit_text, same->file, same->line);
            return NGX_CONF_ERROR;
        }
    }

    /* FNV-1a; which bucket a key has is up to the table's own keyed hash */

    limit->scope = 0xcbf29ce484222325;

    for (i = 0; i < limit->name.len; i++) {
        limit->scope = (limit->scope ^ limit->name.data[i]) * 0x100000001b3;
    }

    limit->scope = (limit->scope ^ (limit->algorithm << 8)) * 0x100000001b3;

    slot = ngx_array_push(&limit->zone->limits);
    if (slot == NULL) {
        return NGX_CONF_ERROR;
    }

    *slot = limit;

    return NGX_CONF_OK;
}


/*
 * Without a name a limit is called after its key, and the next different
 * limit with that key in the zone "<key>#2": a rate may be changed in place
 * and the limit is still the same one.
 */

static char *
ngx_http_tollgate_default_name(ngx_conf_t *cf,
    ngx_http_tollgate_limit_t *limit)
{
    u_char                      c, *p, *base, *last;
    ngx_str_t                   name;
    ngx_uint_t                  i, n;
    ngx_http_tollgate_limit_t  *same;

    base = ngx_pnalloc(cf->pool, NGX_HTTP_TOLLGATE_MAX_NAME);
    if (base == NULL) {
        return NGX_CONF_ERROR;
    }

    p = base;
    last = base + NGX_HTTP_TOLLGATE_MAX_NAME - sizeof("#65536");

    for (i = 0; i < limit->key_text.len && p < last; i++) {

        c = limit->key_text.data[i];

        if (c != '$' && c != '{' && c != '}') {
            *p++ = ngx_http_tollgate_name_char(c) ? c : '_';
        }
    }

    if (p == base) {
        *p++ = '_';
    }

    name.data = base;
    name.len = p - base;

    for (n = 2; n < 65536; n++) {

        same = ngx_http_tollgate_find_limit(limit->zone, &name);

        if (same == NULL
            || (!same->named
                && same->key_text.len == limit->key_text.len
                && ngx_strncmp(same->key_text.data, limit->key_text.data,
                               limit->key_text.len)
                   == 0
                && same->limit_text.len == limit->limit_text.len
                && ngx_strncmp(same->limit_text.data, limit->limit_text.data,
                               limit->limit_text.len)
                   == 0))
        {
            limit->name = name;
            return NGX_CONF_OK;
        }

        name.len = ngx_sprintf(p, "#%ui", n) - base;
    }

    return "is used too often without \"name\"";
}


static ngx_http_tollgate_limit_t *
ngx_http_tollgate_find_limit(ngx_http_tollgate_zone_t *zone, ngx_str_t *name)
{
    ngx_uint_t                   i;
    ngx_http_tollgate_limit_t  **limits;

    limits = zone->limits.elts;

    for (i = 0; i < zone->limits.nelts; i++) {

        if (limits[i]->name.len == name->len
            && ngx_strncmp(limits[i]->name.data, name->data, name->len) == 0)
        {
            return limits[i];
        }
    }

    return NULL;
}


/* names stand in headers, labels and JSON, and never need a quote there */

static ngx_uint_t
ngx_http_tollgate_name_char(u_char c)
{
    return (c >= 'a' && c <= 'z')
           || (c >= 'A' && c <= 'Z')
           || (c >= '0' && c <= '9')
           || (c && ngx_strchr("_.:/#-", c) != NULL);
}


ngx_int_t
ngx_http_tollgate_check_name(ngx_str_t *name)
{
    size_t  i;

    if (name->len == 0 || name->len > NGX_HTTP_TOLLGATE_MAX_NAME) {
        return NGX_ERROR;
    }

    for (i = 0; i < name->len; i++) {
        if (!ngx_http_tollgate_name_char(name->data[i])) {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}
