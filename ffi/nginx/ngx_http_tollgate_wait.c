
/*
 * A request that waits for Redis.  It is woken by the answer, which comes at
 * the latest when its policies' timeout is over; when it ends before, as its
 * client is gone, the answer is given up and nothing stays behind.
 */


#include "ngx_http_tollgate.h"


static ngx_http_tollgate_asked_t *ngx_http_tollgate_keep(
    ngx_http_request_t *r, ngx_http_tollgate_asked_t *asked);
static void ngx_http_tollgate_waiting(ngx_http_request_t *r);
static void ngx_http_tollgate_resume(ngx_http_tollgate_wait_t *wait,
    tollgate_answer *answer);
static void ngx_http_tollgate_end_wait(ngx_http_tollgate_wait_t *wait);
static void ngx_http_tollgate_forget(void *data);


ngx_int_t
ngx_http_tollgate_await(ngx_http_request_t *r, ngx_http_tollgate_conf_t *tlcf,
    ngx_http_tollgate_ctx_t *ctx, ngx_http_tollgate_asked_t *asked,
    uint64_t pending)
{
    ngx_event_t                 *rev;
    ngx_pool_cleanup_t          *cln;
    ngx_http_tollgate_wait_t    *wait;
    ngx_http_tollgate_engine_t  *engine;

    engine = tlcf->policies->engine;

    cln = ngx_pool_cleanup_add(r->pool, sizeof(ngx_http_tollgate_wait_t));
    asked = cln ? ngx_http_tollgate_keep(r, asked) : NULL;

    if (asked == NULL) {
        if (cln) {
            cln->handler = NULL;
        }

        (void) tollgate_redis_cancel(engine->redis, &engine->zone->table,
                                     engine->conf->sh->metrics,
                                     ngx_http_tollgate_now(), pending);

        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    wait = cln->data;

    wait->request = r;
    wait->conf = tlcf;
    wait->ctx = ctx;
    wait->engine = engine;
    wait->version = tlcf->policies->rules->version;
    wait->asked = asked;
    wait->pending = pending;
    wait->rc = NGX_OK;

    wait->version->waits++;
    engine->waiting++;

    ctx->wait = wait;
    cln->handler = ngx_http_tollgate_forget;

    rev = r->connection->read;

    if (rev->ready) {
        ngx_post_event(rev, &ngx_posted_events);

    } else if (ngx_handle_read_event(rev, 0) != NGX_OK) {
        ngx_http_tollgate_forget(wait);
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    r->read_event_handler = ngx_http_test_reading;
    r->write_event_handler = ngx_http_tollgate_waiting;

    return NGX_AGAIN;
}


/* what was asked stands on the stack */

static ngx_http_tollgate_asked_t *
ngx_http_tollgate_keep(ngx_http_request_t *r, ngx_http_tollgate_asked_t *asked)
{
    size_t                      size;
    u_char                     *p;
    ngx_uint_t                  i;
    ngx_http_tollgate_asked_t  *kept;

    size = sizeof(ngx_http_tollgate_asked_t);

    for (i = 0; i < asked->n; i++) {
        size += asked->requests[i].key_len;
    }

    kept = ngx_palloc(r->pool, size);

    if (kept == NULL) {
        ngx_http_tollgate_undo(asked, asked->n);
        return NULL;
    }

    kept->now = asked->now;
    kept->n = asked->n;
    kept->nholds = asked->nholds;

    p = (u_char *) (kept + 1);

    for (i = 0; i < asked->n; i++) {
        kept->limits[i] = asked->limits[i];
        kept->decisions[i] = asked->decisions[i];
        kept->requests[i] = asked->requests[i];
        kept->requests[i].key = p;
        p = ngx_cpymem(p, asked->requests[i].key, asked->requests[i].key_len);

        if (asked->nholds) {
            kept->holds[i] = asked->holds[i];
        }
    }

    return kept;
}


static void
ngx_http_tollgate_waiting(ngx_http_request_t *r)
{
    ngx_http_tollgate_ctx_t    *ctx;
    ngx_http_variable_value_t  *place;

    ngx_log_debug0(NGX_LOG_DEBUG_HTTP, r->connection->log, 0,
                   "tollgate waits");

    if (ngx_handle_write_event(r->connection->write, 0) != NGX_OK) {

        /* nothing is to wake it while the error is told */

        place = ngx_http_tollgate_ctx_place(r);
        ctx = (ngx_http_tollgate_ctx_t *) place->data;
        place->data = NULL;

        ngx_http_tollgate_forget(ctx->wait);
        ngx_http_finalize_request(r, NGX_HTTP_INTERNAL_SERVER_ERROR);
    }
}


void
ngx_http_tollgate_answers(ngx_http_tollgate_engine_t *engine)
{
    uint64_t                  pending, user;
    tollgate_answer           answer;
    ngx_http_tollgate_ctx_t  *ctx;

    for ( ;; ) {

        if (tollgate_redis_answer(engine->redis, &engine->zone->table,
                                  engine->conf->sh->metrics,
                                  ngx_http_tollgate_now(), &pending, &user,
                                  &answer)
            != TOLLGATE_OK
            || pending == 0)
        {
            return;
        }

        ctx = (ngx_http_tollgate_ctx_t *) (uintptr_t) user;

        ngx_http_tollgate_resume(ctx->wait, &answer);
    }
}


static void
ngx_http_tollgate_resume(ngx_http_tollgate_wait_t *wait,
    tollgate_answer *answer)
{
    ngx_connection_t          *c;
    ngx_http_request_t        *r;
    ngx_http_tollgate_ctx_t   *ctx;
    ngx_http_tollgate_conf_t  *tlcf;

    r = wait->request;
    c = r->connection;
    ctx = wait->ctx;
    tlcf = wait->conf;

    wait->pending = 0;

    ngx_http_set_log_request(c->log, r);

    ngx_log_debug0(NGX_LOG_DEBUG_HTTP, c->log, 0, "tollgate goes on");

    ngx_http_tollgate_tell_top(r, tlcf, wait->version, answer);

    wait->rc = ngx_http_tollgate_conclude(r, tlcf, ctx, wait->asked,
                                          wait->version,
                                          (answer->count || !answer->allowed)
                                          ? answer : NULL);

    ngx_http_tollgate_end_wait(wait);

    if (ngx_handle_read_event(c->read, 0) != NGX_OK) {
        ngx_http_finalize_request(r, NGX_HTTP_INTERNAL_SERVER_ERROR);
        ngx_http_run_posted_requests(c);
        return;
    }

    r->read_event_handler = ngx_http_block_reading;
    r->write_event_handler = ngx_http_core_run_phases;

    ngx_http_core_run_phases(r);
    ngx_http_run_posted_requests(c);
}


/* rules that were exchanged meanwhile go with the last that waits */

static void
ngx_http_tollgate_end_wait(ngx_http_tollgate_wait_t *wait)
{
    wait->engine->waiting--;
    wait->version->waits--;

    if (wait->version->unused) {
        ngx_http_tollgate_free_version(wait->version);
    }
}


static void
ngx_http_tollgate_forget(void *data)
{
    ngx_http_tollgate_wait_t  *wait = data;

    ngx_http_tollgate_engine_t  *engine;

    if (wait->pending == 0) {
        return;
    }

    engine = wait->engine;

    (void) tollgate_redis_cancel(engine->redis, &engine->zone->table,
                                 engine->conf->sh->metrics,
                                 ngx_http_tollgate_now(), wait->pending);

    wait->pending = 0;

    ngx_http_tollgate_undo(wait->asked, wait->asked->n);
    ngx_http_tollgate_end_wait(wait);

    ngx_post_event(&engine->flush, &ngx_posted_events);
}


/* units in flight, the zone's or the store's */

void
ngx_http_tollgate_release_hold(ngx_http_tollgate_zone_t *zone,
    tollgate_hold *hold)
{
    ngx_http_tollgate_engine_t  *engine;

    engine = zone->engine;

    if (engine == NULL) {
        (void) tollgate_table_release(&zone->table, hold);
        return;
    }

    (void) tollgate_redis_release(engine->redis, &zone->table,
                                  engine->conf->sh->metrics,
                                  ngx_http_tollgate_now(), hold);

    ngx_post_event(&engine->flush, &ngx_posted_events);
}
