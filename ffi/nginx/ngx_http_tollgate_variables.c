
/*
 * Variables for logs, maps and headers.
 */


#include "ngx_http_tollgate.h"


static ngx_int_t ngx_http_tollgate_ctx_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_http_tollgate_status_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_http_tollgate_name_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_http_tollgate_remaining_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_http_tollgate_retry_after_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_http_tollgate_delay_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_http_tollgate_store_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);


static ngx_http_variable_t  ngx_http_tollgate_vars[] = {

    { ngx_string("tollgate_status"), NULL,
      ngx_http_tollgate_status_variable, 0, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("tollgate_limit"), NULL,
      ngx_http_tollgate_name_variable, 0, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("tollgate_remaining"), NULL,
      ngx_http_tollgate_remaining_variable, 0, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("tollgate_retry_after"), NULL,
      ngx_http_tollgate_retry_after_variable, 0, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("tollgate_delay"), NULL,
      ngx_http_tollgate_delay_variable, 0, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("tollgate_store"), NULL,
      ngx_http_tollgate_store_variable, 0, NGX_HTTP_VAR_NOCACHEABLE, 0 },

      ngx_http_null_variable
};


/* its place holds the context; it has no value and leaves "data" alone */

static ngx_http_variable_t  ngx_http_tollgate_ctx_var =

    { ngx_string("tollgate_ctx"), NULL,
      ngx_http_tollgate_ctx_variable, 0, NGX_HTTP_VAR_NOCACHEABLE, 0 };


static ngx_str_t  ngx_http_tollgate_statuses[] = {
    ngx_string("PASSED"),
    ngx_string("DELAYED"),
    ngx_string("REJECTED"),
    ngx_string("DELAYED_DRY_RUN"),
    ngx_string("REJECTED_DRY_RUN")
};


/* by TOLLGATE_SOURCE_... */

static ngx_str_t  ngx_http_tollgate_sources[] = {
    ngx_string("local"),
    ngx_string("lease"),
    ngx_string("denial"),
    ngx_string("asked"),
    ngx_string("fallback")
};


/* is this variable nginx's own $http_..., and no other's of that name? */

ngx_int_t
ngx_http_tollgate_find_header(ngx_cycle_t *cycle,
    ngx_http_tollgate_value_t *value)
{
    u_char                     *p;
    size_t                      i;
    ngx_http_variable_t        *v;
    ngx_http_core_main_conf_t  *cmcf;

    if (value->index == NGX_ERROR) {
        return NGX_OK;
    }

    cmcf = ngx_http_cycle_get_module_main_conf(cycle, ngx_http_core_module);

    v = cmcf->variables.elts;
    v += value->index;

    /* those found by their prefix have their own name for data */

    if (v->data != (uintptr_t) &v->name
        || v->name.len <= 5
        || ngx_strncmp(v->name.data, "http_", 5) != 0)
    {
        return NGX_OK;
    }

    p = ngx_pnalloc(cycle->pool, v->name.len - 5);
    if (p == NULL) {
        return NGX_ERROR;
    }

    for (i = 5; i < v->name.len; i++) {
        p[i - 5] = (v->name.data[i] == '_') ? '-' : v->name.data[i];
    }

    value->header.data = p;
    value->header.len = v->name.len - 5;
    value->header_hash = ngx_hash_key(p, value->header.len);

    return NGX_OK;
}


static ngx_int_t
ngx_http_tollgate_ctx_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    v->not_found = 1;

    return NGX_OK;
}


static ngx_http_tollgate_ctx_t *
ngx_http_tollgate_decided(ngx_http_request_t *r, ngx_http_variable_value_t *v)
{
    ngx_http_tollgate_ctx_t  *ctx;

    ctx = ngx_http_tollgate_get_ctx(r);

    if (ctx == NULL) {
        v->not_found = 1;
        return NULL;
    }

    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;

    return ctx;
}


static ngx_int_t
ngx_http_tollgate_status_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    ngx_http_tollgate_ctx_t  *ctx;

    ctx = ngx_http_tollgate_decided(r, v);

    if (ctx) {
        v->len = ngx_http_tollgate_statuses[ctx->status - 1].len;
        v->data = ngx_http_tollgate_statuses[ctx->status - 1].data;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_tollgate_name_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    ngx_http_tollgate_ctx_t  *ctx;

    ctx = ngx_http_tollgate_decided(r, v);

    if (ctx) {
        v->len = ctx->name.len;
        v->data = ctx->name.data;
    }

    return NGX_OK;
}


/* of a cost above the burst nobody looks at what is left */

static ngx_int_t
ngx_http_tollgate_remaining_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    ngx_http_tollgate_ctx_t  *ctx;

    ctx = ngx_http_tollgate_decided(r, v);

    if (ctx && ctx->decision.retry_after_ns == TOLLGATE_NEVER) {
        v->valid = 0;
        v->not_found = 1;

    } else if (ctx) {
        v->data = ngx_pnalloc(r->pool, NGX_INT64_LEN);
        if (v->data == NULL) {
            return NGX_ERROR;
        }

        v->len = ngx_sprintf(v->data, "%uL", ctx->decision.remaining)
                 - v->data;
    }

    return NGX_OK;
}


/* the very Retry-After: whole seconds, 0 when allowed, nothing when never */

static ngx_int_t
ngx_http_tollgate_retry_after_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    char                     *p;
    size_t                    n;
    tollgate_http_field       fields[TOLLGATE_HTTP_FIELDS_MAX];
    ngx_http_tollgate_ctx_t  *ctx;

    ctx = ngx_http_tollgate_decided(r, v);

    if (ctx == NULL) {
        return NGX_OK;
    }

    if (ctx->decision.allowed) {
        v->len = 1;
        v->data = (u_char *) "0";
        return NGX_OK;
    }

    p = ngx_pnalloc(r->pool, TOLLGATE_HTTP_BUFFER_SIZE);
    if (p == NULL) {
        return NGX_ERROR;
    }

    if (ctx->limit == NULL
        || tollgate_http_fields(TOLLGATE_FIELDS_OFF,
                                (char *) ctx->name.data, ctx->name.len,
                                ctx->limit, &ctx->decision, p,
                                TOLLGATE_HTTP_BUFFER_SIZE, fields, &n)
           != TOLLGATE_OK
        || n == 0)
    {
        v->valid = 0;
        v->not_found = 1;
        return NGX_OK;
    }

    v->len = fields[0].value_len;
    v->data = (u_char *) fields[0].value;

    return NGX_OK;
}


/* how long the leaky bucket says to wait, in seconds as $request_time is */

static ngx_int_t
ngx_http_tollgate_delay_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    uint64_t                  ms;
    ngx_http_tollgate_ctx_t  *ctx;

    ctx = ngx_http_tollgate_decided(r, v);

    if (ctx) {
        ms = ctx->decision.delay_ns / 1000000
             + (ctx->decision.delay_ns % 1000000 ? 1 : 0);

        v->data = ngx_pnalloc(r->pool, NGX_INT64_LEN + 4);
        if (v->data == NULL) {
            return NGX_ERROR;
        }

        v->len = ngx_sprintf(v->data, "%uL.%03uL", ms / 1000, ms % 1000)
                 - v->data;
    }

    return NGX_OK;
}


/* what the decision rests on */

static ngx_int_t
ngx_http_tollgate_store_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    ngx_http_tollgate_ctx_t  *ctx;

    ctx = ngx_http_tollgate_decided(r, v);

    if (ctx) {
        v->len = ngx_http_tollgate_sources[ctx->source].len;
        v->data = ngx_http_tollgate_sources[ctx->source].data;
    }

    return NGX_OK;
}


ngx_int_t
ngx_http_tollgate_add_variables(ngx_conf_t *cf)
{
    ngx_http_variable_t            *var, *v;
    ngx_http_tollgate_main_conf_t  *tmcf;

    for (v = ngx_http_tollgate_vars; v->name.len; v++) {
        var = ngx_http_add_variable(cf, &v->name, v->flags);
        if (var == NULL) {
            return NGX_ERROR;
        }

        var->get_handler = v->get_handler;
        var->data = v->data;
    }

    v = &ngx_http_tollgate_ctx_var;

    var = ngx_http_add_variable(cf, &v->name, v->flags);
    if (var == NULL) {
        return NGX_ERROR;
    }

    var->get_handler = v->get_handler;

    tmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_tollgate_module);

    tmcf->index = ngx_http_get_variable_index(cf, &v->name);

    return (tmcf->index == NGX_ERROR) ? NGX_ERROR : NGX_OK;
}
