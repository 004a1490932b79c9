
/*
 * A request asks the table: keys and costs are evaluated, the limits that
 * apply are checked, all or none, and counted.
 *
 * The answer is kept in the place of a variable that has no other use: what
 * the modules' contexts hold is cleared by internal redirects, variables stay,
 * and subrequests share them.
 */


#include "ngx_http_tollgate.h"


/* keys of usual length are put together on the stack */
#define NGX_HTTP_TOLLGATE_KEYS_SIZE  1024


static ngx_int_t ngx_http_tollgate_check_layers(ngx_http_request_t *r,
    ngx_http_tollgate_conf_t *tlcf, ngx_http_tollgate_ctx_t **ctxp);
static uint64_t ngx_http_tollgate_cost(ngx_http_request_t *r,
    ngx_http_tollgate_limit_t *limit);
static ngx_int_t ngx_http_tollgate_failed(ngx_http_request_t *r,
    ngx_http_tollgate_limit_t *limit, tollgate_status status);
static void ngx_http_tollgate_cleanup(void *data);


/*
 * The timer is the connection's, and wakes the request whose turn it is to
 * send.  Others are never woken: a subrequest in the background, as that of
 * a mirror, or one that stands in line.  They go on at once.
 */

#define ngx_http_tollgate_waits(r, limit)                                     \
    ((limit)->delay && (r)->connection->data == (r))


/* a delay that is only reported is not counted as one */

static ngx_inline void
ngx_http_tollgate_count(ngx_http_request_t *r,
    ngx_http_tollgate_limit_t *limit, tollgate_decision *decision,
    ngx_uint_t dry_run)
{
    tollgate_decision  d;

    if (decision->delay_ns && !ngx_http_tollgate_waits(r, limit)) {
        d = *decision;
        d.delay_ns = 0;
        decision = &d;
    }

    (void) tollgate_counters_record(limit->counters, decision, dry_run);
}


static ngx_inline ngx_http_tollgate_ctx_t *
ngx_http_tollgate_create_ctx(ngx_http_request_t *r,
    ngx_http_tollgate_conf_t *tlcf)
{
    size_t                    size;
    ngx_pool_cleanup_t       *cln;
    ngx_http_tollgate_ctx_t  *ctx;

    if (tlcf->nholds == 0) {
        ctx = ngx_palloc(r->pool, offsetof(ngx_http_tollgate_ctx_t, holds));
        if (ctx == NULL) {
            return NULL;
        }

    } else {
        size = offsetof(ngx_http_tollgate_ctx_t, holds)
               + tlcf->nholds * sizeof(ngx_http_tollgate_hold_t);

        cln = ngx_pool_cleanup_add(r->pool, size);
        if (cln == NULL) {
            return NULL;
        }

        ctx = cln->data;

        /* holds are given back when the request ends, however it ends */

        cln->handler = ngx_http_tollgate_cleanup;
    }

    ctx->limit = NULL;
    ctx->zone = NULL;
    ctx->missing.len = 0;
    ctx->policy = 0;
    ctx->fields = tlcf->dry_run ? TOLLGATE_FIELDS_OFF : tlcf->fields;
    ctx->status = 0;
    ctx->source = TOLLGATE_SOURCE_LOCAL;
    ctx->wait = NULL;
    ctx->delay = 0;
    ctx->until = 0;
    ctx->nholds = 0;

    return ctx;
}


/* whose decision it is that the client is told */

static ngx_inline void
ngx_http_tollgate_tell(ngx_http_tollgate_ctx_t *ctx,
    ngx_http_tollgate_limit_t *limit)
{
    ctx->limit = &limit->limit;
    ctx->name = limit->name;
    ctx->zone = limit->zone;

    if (!ctx->decision.allowed) {
        ctx->denial = (ctx->decision.retry_after_ns == TOLLGATE_NEVER)
                      ? limit->status_over : limit->status;
    }
}


/*
 * The header of this name when there is just one; the variable knows what is
 * to be done with none, with several, and with names that have "_" for "-".
 */

static ngx_inline ngx_table_elt_t *
ngx_http_tollgate_header(ngx_http_request_t *r,
    ngx_http_tollgate_value_t *value)
{
    ngx_uint_t        i;
    ngx_table_elt_t  *h, *found;
    ngx_list_part_t  *part;

    found = NULL;

    part = &r->headers_in.headers.part;
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

        if (h[i].key.len != value->header.len) {
            continue;
        }

        if (h[i].hash == value->header_hash
            && h[i].lowcase_key
            && found == NULL
            && ngx_memcmp(h[i].lowcase_key, value->header.data,
                          value->header.len)
               == 0)
        {
            found = &h[i];
            continue;
        }

        /* another of that length: rare, and not worth the difference */

        return NULL;
    }

    return found;
}


static ngx_inline ngx_int_t
ngx_http_tollgate_value(ngx_http_request_t *r,
    ngx_http_tollgate_value_t *value, ngx_str_t *s)
{
    ngx_table_elt_t            *h;
    ngx_http_variable_value_t  *vv;

    if (value->header.len) {

        h = ngx_http_tollgate_header(r, value);

        if (h) {
            *s = h->value;
            return NGX_OK;
        }
    }

    if (value->index == NGX_ERROR) {
        return ngx_http_complex_value(r, &value->complex, s);
    }

    vv = ngx_http_get_flushed_variable(r, value->index);

    if (vv == NULL || vv->not_found) {
        s->len = 0;
        return NGX_OK;
    }

    s->len = vv->len;
    s->data = vv->data;

    return NGX_OK;
}


/* NGX_DECLINED: an empty key is not limited */

static ngx_inline ngx_int_t
ngx_http_tollgate_request(ngx_http_request_t *r,
    ngx_http_tollgate_limit_t *limit, u_char **buf, u_char *end,
    tollgate_request *request)
{
    size_t      len;
    u_char     *p;
    ngx_str_t   key;

    if (ngx_http_tollgate_value(r, &limit->key, &key) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (key.len == 0) {
        return NGX_DECLINED;
    }

    len = sizeof(uint64_t) + key.len;

    if (len <= (size_t) (end - *buf)) {
        p = *buf;
        *buf += len;

    } else {
        p = ngx_pnalloc(r->pool, len);
        if (p == NULL) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }
    }

    ngx_memcpy(p, &limit->scope, sizeof(uint64_t));
    ngx_memcpy(p + sizeof(uint64_t), key.data, key.len);

    request->key = p;
    request->key_len = len;
    request->limit = &limit->limit;
    request->cost = limit->variable_cost ? ngx_http_tollgate_cost(r, limit)
                                         : limit->cost;

    return NGX_OK;
}


/*
 * NGX_OK: *ctxp holds the decision; NGX_DECLINED: there is none to make.
 *
 * In the usual case, one limit, it is written where it will be read.
 */

ngx_int_t
ngx_http_tollgate_check(ngx_http_request_t *r, ngx_http_tollgate_conf_t *tlcf,
    ngx_http_tollgate_ctx_t **ctxp)
{
    u_char                     *p, buf[NGX_HTTP_TOLLGATE_KEYS_SIZE];
    uint64_t                    now;
    ngx_int_t                   rc;
    tollgate_status             status;
    tollgate_request            request;
    ngx_http_tollgate_ctx_t    *ctx;
    ngx_http_tollgate_limit_t  *limit;

    if (tlcf->nlimits != 1 || tlcf->policies) {
        return ngx_http_tollgate_check_layers(r, tlcf, ctxp);
    }

    limit = tlcf->limits[0];
    p = buf;

    rc = ngx_http_tollgate_request(r, limit, &p, buf + sizeof(buf), &request);

    if (rc != NGX_OK) {
        return rc;
    }

    ctx = ngx_http_tollgate_create_ctx(r, tlcf);
    if (ctx == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    now = ngx_http_tollgate_now();

    if (limit->concurrency) {
        status = tollgate_table_acquire(&limit->zone->table, request.key,
                                        request.key_len, request.limit,
                                        request.cost, now,
                                        &ctx->decision, &ctx->holds[0].hold);

        if (status == TOLLGATE_OK && ctx->decision.allowed) {
            ctx->holds[0].table = &limit->zone->table;
            ctx->nholds = 1;
        }

    } else {
        status = tollgate_table_check(&limit->zone->table, request.key,
                                      request.key_len, request.limit,
                                      request.cost, now, &ctx->decision);
    }

    if (status != TOLLGATE_OK) {
        return ngx_http_tollgate_failed(r, limit, status);
    }

    ngx_http_tollgate_tell(ctx, limit);

    if (ctx->decision.delay_ns && ngx_http_tollgate_waits(r, limit)) {
        ctx->delay = ngx_http_tollgate_ms(ctx->decision.delay_ns);
        ctx->until = now + ctx->decision.delay_ns;
    }

    ngx_http_tollgate_count(r, limit, &ctx->decision, tlcf->dry_run);

    *ctxp = ctx;

    return NGX_OK;
}


/*
 * Several limits: all of them are charged or none.  The library does this
 * within a zone; a zone that said yes is paid back when a later one denies.
 * The rules are asked last, as what they charge cannot be paid back.
 */

static ngx_int_t
ngx_http_tollgate_check_layers(ngx_http_request_t *r,
    ngx_http_tollgate_conf_t *tlcf, ngx_http_tollgate_ctx_t **ctxp)
{
    size_t                       tightest;
    u_char                      *p, buf[NGX_HTTP_TOLLGATE_KEYS_SIZE];
    uint64_t                     pending;
    ngx_int_t                    rc;
    ngx_uint_t                   i, n, from, to;
    tollgate_answer              answer;
    tollgate_status              status;
    ngx_http_tollgate_ctx_t     *ctx;
    ngx_http_tollgate_zone_t    *zone;
    ngx_http_tollgate_asked_t    asked;
    ngx_http_tollgate_limit_t  **limits;

    n = 0;
    p = buf;
    limits = asked.limits;

    for (i = 0; i < tlcf->nlimits; i++) {

        rc = ngx_http_tollgate_request(r, tlcf->limits[i], &p,
                                       buf + sizeof(buf), &asked.requests[n]);

        if (rc == NGX_OK) {
            limits[n++] = tlcf->limits[i];
            continue;
        }

        if (rc != NGX_DECLINED) {
            return rc;
        }
    }

    if (n == 0 && tlcf->policies == NULL) {
        return NGX_DECLINED;
    }

    ctx = ngx_http_tollgate_create_ctx(r, tlcf);
    if (ctx == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    *ctxp = ctx;

    asked.n = n;
    asked.nholds = tlcf->nholds;
    asked.now = ngx_http_tollgate_now();

    if (asked.nholds) {
        ngx_memzero(asked.holds, n * sizeof(tollgate_hold));
    }

    for (from = 0; from < n; from = to) {

        zone = limits[from]->zone;

        for (to = from + 1; to < n && limits[to]->zone == zone; to++) {
            /* void */
        }

        status = tollgate_table_check_all(&zone->table, &asked.requests[from],
                                     to - from, asked.now,
                                     &asked.decisions[from],
                                     asked.nholds ? &asked.holds[from] : NULL,
                                     &tightest);

        if (status == TOLLGATE_OK && asked.decisions[from + tightest].allowed) {
            continue;
        }

        ngx_http_tollgate_undo(&asked, from);

        if (status != TOLLGATE_OK) {
            return ngx_http_tollgate_failed(r, limits[from], status);
        }

        for (i = from; i < to; i++) {
            if (!asked.decisions[i].allowed) {
                ngx_http_tollgate_count(r, limits[i], &asked.decisions[i],
                                        tlcf->dry_run);
            }
        }

        ctx->decision = asked.decisions[from + tightest];
        ngx_http_tollgate_tell(ctx, limits[from + tightest]);

        return NGX_OK;
    }

    if (tlcf->policies == NULL) {
        return ngx_http_tollgate_conclude(r, tlcf, ctx, &asked, NULL, NULL);
    }

    rc = ngx_http_tollgate_ask(r, tlcf, ctx, asked.now, &answer, &pending);

    if (rc == NGX_AGAIN) {
        return ngx_http_tollgate_await(r, tlcf, ctx, &asked, pending);
    }

    return ngx_http_tollgate_conclude(r, tlcf, ctx, &asked,
                                      tlcf->policies->rules->version,
                                      (rc == NGX_OK) ? &answer : NULL);
}


/*
 * The limits of "tollgate" agree; "answer" is what the rules say, NULL when
 * they have no say.  NGX_DECLINED: there is no decision to make.
 */

ngx_int_t
ngx_http_tollgate_conclude(ngx_http_request_t *r,
    ngx_http_tollgate_conf_t *tlcf, ngx_http_tollgate_ctx_t *ctx,
    ngx_http_tollgate_asked_t *asked, ngx_http_tollgate_version_t *version,
    tollgate_answer *answer)
{
    uint64_t                    delay;
    ngx_uint_t                  i, best;
    tollgate_decision          *decisions;
    ngx_http_tollgate_limit_t  *limit;

    if (answer && !answer->allowed) {
        ngx_http_tollgate_undo(asked, asked->n);

        return ngx_http_tollgate_take(r, tlcf, ctx, version, answer);
    }

    if (asked->n) {

        best = 0;
        delay = 0;
        decisions = asked->decisions;

        for (i = 0; i < asked->n; i++) {

            limit = asked->limits[i];

            if (decisions[i].remaining < decisions[best].remaining) {
                best = i;
            }

            if (decisions[i].delay_ns > delay
                && ngx_http_tollgate_waits(r, limit))
            {
                delay = decisions[i].delay_ns;
            }

            ngx_http_tollgate_count(r, limit, &decisions[i], tlcf->dry_run);

            if (limit->concurrency) {
                ctx->holds[ctx->nholds].table = &limit->zone->table;
                ctx->holds[ctx->nholds].hold = asked->holds[i];
                ctx->nholds++;
            }
        }

        ctx->delay = ngx_http_tollgate_ms(delay);
        ctx->until = asked->now + delay;
        ctx->decision = decisions[best];

        ngx_http_tollgate_tell(ctx, asked->limits[best]);

    } else if (answer == NULL) {
        return NGX_DECLINED;
    }

    return answer ? ngx_http_tollgate_take(r, tlcf, ctx, version, answer)
                  : NGX_OK;
}


/* the first n limits were charged for a request that is not admitted */

void
ngx_http_tollgate_undo(ngx_http_tollgate_asked_t *asked, ngx_uint_t n)
{
    ngx_uint_t                  i, from, to;
    ngx_http_tollgate_limit_t **limits;

    limits = asked->limits;

    for (from = 0; from < n; from = to) {

        for (to = from + 1;
             to < n && limits[to]->zone == limits[from]->zone;
             to++)
        {
            /* void */
        }

        (void) tollgate_table_refund_all(&limits[from]->zone->table,
                                         &asked->requests[from], to - from,
                                         asked->now);

        for (i = from; asked->nholds && i < to; i++) {
            if (limits[i]->concurrency) {
                (void) tollgate_table_release(&limits[i]->zone->table,
                                              &asked->holds[i]);
            }
        }
    }
}


/*
 * No value is one unit, as without "cost"; a value that is no number is
 * logged and is one unit too; a number too large to read is the largest,
 * so that nobody makes a request cheaper by writing more digits.
 */

static uint64_t
ngx_http_tollgate_cost(ngx_http_request_t *r, ngx_http_tollgate_limit_t *limit)
{
    size_t     i;
    uint64_t   cost;
    ngx_str_t  s;

    if (ngx_http_tollgate_value(r, &limit->cost_value, &s) != NGX_OK
        || s.len == 0)
    {
        return 1;
    }

    cost = 0;

    for (i = 0; i < s.len; i++) {

        if (s.data[i] < '0' || s.data[i] > '9') {
            ngx_log_error(NGX_LOG_WARN, r->connection->log, 0,
                          "the cost of limit \"%V\" is not a number, "
                          "one unit is taken", &limit->name);
            return 1;
        }

        if (cost > (UINT64_MAX - 9) / 10) {
            cost = UINT64_MAX;
            continue;
        }

        cost = cost * 10 + (s.data[i] - '0');
    }

    return cost;
}


/* a limiter that cannot decide is never the outage: the request passes */

static ngx_int_t
ngx_http_tollgate_failed(ngx_http_request_t *r,
    ngx_http_tollgate_limit_t *limit, tollgate_status status)
{
    (void) tollgate_counters_error(limit->counters);

    ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                  "limit \"%V\" of zone \"%V\" could not decide, "
                  "the request passes: %s", &limit->name, &limit->zone->name,
                  tollgate_status_str(status));

    return NGX_DECLINED;
}


static void
ngx_http_tollgate_cleanup(void *data)
{
    ngx_http_tollgate_ctx_t  *ctx = data;

    ngx_uint_t  i;

    for (i = 0; i < ctx->nholds; i++) {
        (void) tollgate_table_release(ctx->holds[i].table,
                                      &ctx->holds[i].hold);
    }
}
