
/*
 * What a client sees: the header fields of a decision, on every response of
 * the request that it was made for, and the body of a denial.
 */


#include "ngx_http_tollgate.h"


/* the usual fields fit here, all of them in TOLLGATE_HTTP_BUFFER_SIZE */
#define NGX_HTTP_TOLLGATE_FIELDS_SIZE  128


static ngx_int_t ngx_http_tollgate_header_filter(ngx_http_request_t *r);
static ngx_int_t ngx_http_tollgate_add_field(ngx_http_request_t *r,
    tollgate_http_field *field);
static void ngx_http_tollgate_drop_fields(ngx_http_request_t *r,
    tollgate_http_field *fields, size_t n);
static ngx_int_t ngx_http_tollgate_problem(ngx_http_tollgate_ctx_t *ctx,
    ngx_uint_t status, char *problem, size_t *len);
static ngx_uint_t ngx_http_tollgate_is_grpc(ngx_http_request_t *r);
static ngx_int_t ngx_http_tollgate_deny_grpc(ngx_http_request_t *r,
    ngx_http_tollgate_ctx_t *ctx);
static ngx_uint_t ngx_http_tollgate_has_error_page(ngx_http_request_t *r,
    ngx_uint_t status);
static void ngx_http_tollgate_set_status(ngx_http_request_t *r,
    ngx_uint_t status);


static ngx_http_output_header_filter_pt  ngx_http_next_header_filter;


static ngx_int_t
ngx_http_tollgate_header_filter(ngx_http_request_t *r)
{
    u_char                     *p;
    size_t                      i, n, size;
    tollgate_status             status;
    tollgate_http_field         fields[TOLLGATE_HTTP_FIELDS_MAX];
    ngx_http_tollgate_ctx_t    *ctx;

    if (r != r->main) {
        return ngx_http_next_header_filter(r);
    }

    ctx = ngx_http_tollgate_get_ctx(r);

    if (ctx == NULL
        || (ctx->status != NGX_HTTP_TOLLGATE_REJECTED
            && (ctx->limit == NULL || ctx->fields == TOLLGATE_FIELDS_OFF)))
    {
        return ngx_http_next_header_filter(r);
    }

    size = NGX_HTTP_TOLLGATE_FIELDS_SIZE;

    do {
        p = ngx_pnalloc(r->pool, size);
        if (p == NULL) {
            return NGX_ERROR;
        }

        if (ctx->limit) {
            status = tollgate_http_fields(ctx->fields,
                                          (char *) ctx->name.data,
                                          ctx->name.len, ctx->limit,
                                          &ctx->decision, (char *) p, size,
                                          fields, &n);

        } else {
            status = tollgate_http_missing_fields((char *) ctx->missing.data,
                                                  ctx->missing.len,
                                                  (char *) p, size, fields,
                                                  &n);
        }

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

        if (ngx_http_tollgate_add_field(r, &fields[i]) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    return ngx_http_next_header_filter(r);
}


static ngx_int_t
ngx_http_tollgate_add_field(ngx_http_request_t *r, tollgate_http_field *field)
{
    ngx_table_elt_t  *h;

    h = ngx_list_push(&r->headers_out.headers);
    if (h == NULL) {
        return NGX_ERROR;
    }

    h->hash = 1;
#if (nginx_version >= 1023000)
    h->next = NULL;
#endif
    h->key.data = (u_char *) field->name;
    h->key.len = field->name_len;
    h->value.data = (u_char *) field->value;
    h->value.len = field->value_len;

    return NGX_OK;
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

    /* 444 is no answer: the connection is closed, as by "return 444" */

    if (r != r->main
        || status == NGX_HTTP_CLOSE
        || ngx_http_tollgate_has_error_page(r, status))
    {
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

    ngx_http_tollgate_set_status(r, status);
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
    tollgate_status  rc;

    if (ctx->missing.len) {
        rc = tollgate_http_missing_problem((char *) ctx->missing.data,
                                           ctx->missing.len, problem,
                                           TOLLGATE_HTTP_PROBLEM_SIZE, len);

    } else {
        rc = tollgate_http_problem((uint32_t) status, (char *) ctx->name.data,
                                   ctx->name.len, &ctx->decision, problem,
                                   TOLLGATE_HTTP_PROBLEM_SIZE, len);
    }

    return (rc == TOLLGATE_OK) ? NGX_OK : NGX_ERROR;
}


static ngx_uint_t
ngx_http_tollgate_is_grpc(ngx_http_request_t *r)
{
    uint32_t          is;
    ngx_table_elt_t  *type;

    type = r->headers_in.content_type;

    return type
           && tollgate_http_is_grpc((char *) type->value.data,
                                    type->value.len, &is)
              == TOLLGATE_OK
           && is;
}


/*
 * A gRPC client reads no HTTP status: it is told in "trailers only", which
 * are the header fields of a response that has no body.
 */

static ngx_int_t
ngx_http_tollgate_deny_grpc(ngx_http_request_t *r,
    ngx_http_tollgate_ctx_t *ctx)
{
    u_char               *p;
    size_t                i, n;
    ngx_int_t             rc;
    ngx_str_t            *name;
    tollgate_http_field   fields[TOLLGATE_HTTP_FIELDS_MAX];

    p = ngx_pnalloc(r->pool, TOLLGATE_HTTP_BUFFER_SIZE);
    if (p == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    name = ctx->missing.len ? &ctx->missing : &ctx->name;

    if (tollgate_http_grpc((char *) name->data, name->len,
                           ctx->missing.len ? NULL : &ctx->decision,
                           (char *) p, TOLLGATE_HTTP_BUFFER_SIZE, fields, &n)
        != TOLLGATE_OK)
    {
        return ctx->denial;
    }

    for (i = 0; i < n; i++) {

        if (fields[i].name_len == 12
            && ngx_strncmp(fields[i].name, "content-type", 12) == 0)
        {
            r->headers_out.content_type.data = (u_char *) fields[i].value;
            r->headers_out.content_type.len = fields[i].value_len;
            r->headers_out.content_type_len = fields[i].value_len;
            r->headers_out.content_type_lowcase = NULL;
            continue;
        }

        if (ngx_http_tollgate_add_field(r, &fields[i]) != NGX_OK) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }
    }

    r->expect_tested = 1;

    if (ngx_http_discard_request_body(r) != NGX_OK) {
        r->keepalive = 0;
    }

    ngx_http_tollgate_set_status(r, NGX_HTTP_OK);

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


/* the error that led to a page does not name the status of a denial there */

static void
ngx_http_tollgate_set_status(ngx_http_request_t *r, ngx_uint_t status)
{
    r->err_status = 0;
    r->headers_out.status = status;
    r->headers_out.status_line.len = 0;
}


ngx_int_t
ngx_http_tollgate_filter_init(ngx_conf_t *cf)
{
    ngx_http_next_header_filter = ngx_http_top_header_filter;
    ngx_http_top_header_filter = ngx_http_tollgate_header_filter;

    return NGX_OK;
}
