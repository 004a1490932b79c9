
/*
 * What a client sees: the header fields of a decision, on every response of
 * the request that it was made for, and the body of a denial.
 */


#include "ngx_http_tollgate.h"


/* the usual fields fit here, all of them in TOLLGATE_HTTP_BUFFER_SIZE */
#define NGX_HTTP_TOLLGATE_FIELDS_SIZE  128


static ngx_int_t ngx_http_tollgate_header_filter(ngx_http_request_t *r);
static void ngx_http_tollgate_drop_fields(ngx_http_request_t *r,
    tollgate_http_field *fields, size_t n);
static ngx_int_t ngx_http_tollgate_problem(ngx_http_tollgate_ctx_t *ctx,
    ngx_uint_t status, char *problem, size_t *len);
static ngx_uint_t ngx_http_tollgate_is_grpc(ngx_http_request_t *r);
static ngx_int_t ngx_http_tollgate_deny_grpc(ngx_http_request_t *r,
    ngx_http_tollgate_ctx_t *ctx);
static ngx_uint_t ngx_http_tollgate_has_error_page(ngx_http_request_t *r,
    ngx_uint_t status);


static ngx_http_output_header_filter_pt  ngx_http_next_header_filter;


static ngx_int_t
ngx_http_tollgate_header_filter(ngx_http_request_t *r)
{
    u_char                     *p;
    size_t                      i, n, size;
    tollgate_status             status;
    ngx_table_elt_t            *h;
    tollgate_http_field         fields[TOLLGATE_HTTP_FIELDS_MAX];
    ngx_http_tollgate_ctx_t    *ctx;

    if (r != r->main) {
        return ngx_http_next_header_filter(r);
    }

    ctx = ngx_http_tollgate_get_ctx(r);

    if (ctx == NULL
        || ctx->limit == NULL
        || (ctx->fields == TOLLGATE_FIELDS_OFF
            && ctx->status != NGX_HTTP_TOLLGATE_REJECTED))
    {
        return ngx_http_next_header_filter(r);
    }

    size = NGX_HTTP_TOLLGATE_FIELDS_SIZE;

    do {
        p = ngx_pnalloc(r->pool, size);
        if (p == NULL) {
            return NGX_ERROR;
        }

        status = tollgate_http_fields(ctx->fields, (char *) ctx->name.data,
                                      ctx->name.len, ctx->limit,
                                      &ctx->decision, (char *) p, size,
                                      fields, &n);

        size += TOLLGATE_HTTP_BUFFER_SIZE;

    } while (status == TOLLGATE_ERR_SIZE
             && size < 2 * TOLLGATE_HTTP_BUFFER_SIZE);

    if (status != TOLLGATE_OK) {
        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                      "no header fields for \"%V\": %s", &ctx->name,
                      tollgate_status_str(status));

        return ngx_http_next_header_filter(r);
    }

    /* an upstream may be limited too; what counts is said here, once */

    if (r->upstream) {
        ngx_http_tollgate_drop_fields(r, fields, n);
    }

    for (i = 0; i < n; i++) {

        h = ngx_list_push(&r->headers_out.headers);
        if (h == NULL) {
            return NGX_ERROR;
        }

        h->hash = 1;
#if (nginx_version >= 1023000)
        h->next = NULL;
#endif
        h->key.data = (u_char *) fields[i].name;
        h->key.len = fields[i].name_len;
        h->value.data = (u_char *) fields[i].value;
        h->value.len = fields[i].value_len;
    }

    return ngx_http_next_header_filter(r);
}


static void
ngx_http_tollgate_drop_fields(ngx_http_request_t *r,
    tollgate_http_field *fields, size_t n)
{
    size_t            k;
    ngx_uint_t        i;
    ngx_table_elt_t  *h;
    ngx_list_part_t  *part;

    part = &r->headers_out.headers.part;
    h = part->elts;

    for (i = 0; /* void */ ; i++) {

        if (i >= part->nelts) {
            if (part->next == NULL) {
                break;
            }

            part = part->next;
            h = part->elts;
            i = 0;
        }

        for (k = 0; k < n; k++) {

            if (h[i].key.len == fields[k].name_len
                && ngx_strncasecmp(h[i].key.data, (u_char *) fields[k].name,
                                   fields[k].name_len)
                   == 0)
            {
                h[i].hash = 0;
                break;
            }
        }
    }
}


/* sends the denial, or leaves it to nginx when the configuration has a page */

ngx_int_t
ngx_http_tollgate_deny(ngx_http_request_t *r, ngx_http_tollgate_ctx_t *ctx,
    ngx_uint_t status)
{
    char         problem[TOLLGATE_HTTP_PROBLEM_SIZE];
    size_t       len;
    ngx_int_t    rc;
    ngx_buf_t   *b;
    ngx_chain_t  out;

    if (r != r->main || ngx_http_tollgate_has_error_page(r, status)) {
        return status;
    }

    if (ngx_http_tollgate_is_grpc(r)) {
        return ngx_http_tollgate_deny_grpc(r, ctx);
    }

    if (ngx_http_tollgate_problem(ctx, status, problem, &len) != NGX_OK) {
        return status;
    }

    b = ngx_create_temp_buf(r->pool, len);
    if (b == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    b->last = ngx_cpymem(b->pos, problem, len);
    b->last_buf = 1;
    b->last_in_chain = 1;

    out.buf = b;
    out.next = NULL;

    /* nobody reads the body, so a client that asked first need not send it */

    r->expect_tested = 1;

    if (ngx_http_discard_request_body(r) != NGX_OK) {
        r->keepalive = 0;
    }

    r->headers_out.status = status;
    r->headers_out.content_length_n = len;

    ngx_str_set(&r->headers_out.content_type, "application/problem+json");
    r->headers_out.content_type_len = r->headers_out.content_type.len;
    r->headers_out.content_type_lowcase = NULL;

    rc = ngx_http_send_header(r);

    if (rc != NGX_ERROR && rc <= NGX_OK && !r->header_only) {
        rc = ngx_http_output_filter(r, &out);
    }

    /* the phase engine would go on after a response, so the end is here */

    ngx_http_finalize_request(r, rc);

    return NGX_DONE;
}


static ngx_int_t
ngx_http_tollgate_problem(ngx_http_tollgate_ctx_t *ctx, ngx_uint_t status,
    char *problem, size_t *len)
{
    u_char  *p;

    if (ctx->missing.len) {

        /* names of policies and of header fields need no escape */

        p = ngx_snprintf((u_char *) problem, TOLLGATE_HTTP_PROBLEM_SIZE,
                         "{\"type\":\"about:blank\","
                         "\"title\":\"Unauthorized\","
                         "\"status\":%ui,"
                         "\"detail\":\"The header field %V is missing, and "
                         "policy %V needs it.\","
                         "\"violated-policies\":[\"%V\"]}",
                         status, &ctx->missing, &ctx->name, &ctx->name);

        *len = p - (u_char *) problem;

        return NGX_OK;
    }

    return (tollgate_http_problem((uint32_t) status, (char *) ctx->name.data,
                                  ctx->name.len, &ctx->decision, problem,
                                  TOLLGATE_HTTP_PROBLEM_SIZE, len)
            == TOLLGATE_OK)
           ? NGX_OK : NGX_ERROR;
}


static ngx_uint_t
ngx_http_tollgate_is_grpc(ngx_http_request_t *r)
{
    ngx_str_t  *type;

    if (r->headers_in.content_type == NULL) {
        return 0;
    }

    type = &r->headers_in.content_type->value;

    return type->len >= 16
           && ngx_strncasecmp(type->data, (u_char *) "application/grpc", 16)
              == 0
           && (type->len == 16
               || type->data[16] == '+'
               || type->data[16] == ';');
}


/*
 * A gRPC client reads no HTTP status: it is told in "trailers only", which
 * are the header fields of a response that has no body.
 */

static ngx_int_t
ngx_http_tollgate_deny_grpc(ngx_http_request_t *r,
    ngx_http_tollgate_ctx_t *ctx)
{
    ngx_int_t         rc;
    ngx_uint_t        i;
    ngx_table_elt_t  *h;

    static ngx_str_t  limited[] = {
        ngx_string("grpc-status"), ngx_string("8"),
        ngx_string("grpc-message"), ngx_string("request rate limit exceeded")
    };

    static ngx_str_t  unidentified[] = {
        ngx_string("grpc-status"), ngx_string("16"),
        ngx_string("grpc-message"), ngx_string("missing identity")
    };

    for (i = 0; i < 4; i += 2) {

        h = ngx_list_push(&r->headers_out.headers);
        if (h == NULL) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

        h->hash = 1;
#if (nginx_version >= 1023000)
        h->next = NULL;
#endif
        h->key = ctx->missing.len ? unidentified[i] : limited[i];
        h->value = ctx->missing.len ? unidentified[i + 1] : limited[i + 1];
    }

    r->expect_tested = 1;

    if (ngx_http_discard_request_body(r) != NGX_OK) {
        r->keepalive = 0;
    }

    r->headers_out.status = NGX_HTTP_OK;

    ngx_str_set(&r->headers_out.content_type, "application/grpc");
    r->headers_out.content_type_len = r->headers_out.content_type.len;
    r->headers_out.content_type_lowcase = NULL;

    /* over HTTP/2 the header fields end the stream */

    if (r->http_version >= NGX_HTTP_VERSION_20) {
        r->header_only = 1;

    } else {
        r->headers_out.content_length_n = 0;
    }

    rc = ngx_http_send_header(r);

    if (rc == NGX_OK && !r->header_only) {
        rc = ngx_http_send_special(r, NGX_HTTP_LAST);
    }

    ngx_http_finalize_request(r, rc);

    return NGX_DONE;
}


/* would ngx_http_special_response_handler() redirect this status? */

static ngx_uint_t
ngx_http_tollgate_has_error_page(ngx_http_request_t *r, ngx_uint_t status)
{
    ngx_uint_t                 i;
    ngx_http_err_page_t       *err_page;
    ngx_http_core_loc_conf_t  *clcf;

    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    if (r->error_page || clcf->error_pages == NULL || r->uri_changes == 0) {
        return 0;
    }

    err_page = clcf->error_pages->elts;

    for (i = 0; i < clcf->error_pages->nelts; i++) {
        if (err_page[i].status == (ngx_int_t) status) {
            return 1;
        }
    }

    return 0;
}


ngx_int_t
ngx_http_tollgate_filter_init(ngx_conf_t *cf)
{
    ngx_http_next_header_filter = ngx_http_top_header_filter;
    ngx_http_top_header_filter = ngx_http_tollgate_header_filter;

    return NGX_OK;
}
