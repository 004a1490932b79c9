
/*
 * "tollgate_policies": a request is asked of the rules.
 *
 * What the library hears of a request are pointers into it; nothing is
 * copied, and nothing of the rules is kept when the answer is there.  So the
 * rules may be exchanged between any two requests; those that requests wait
 * for an answer of stay until it is there.
 */


#include "ngx_http_tollgate.h"


typedef struct {
    ngx_http_tollgate_zone_t       *zone;
    ngx_uint_t                      n;
    tollgate_hold                   holds[1];    /* n of them */
} ngx_http_tollgate_holds_t;


static ngx_int_t ngx_http_tollgate_attributes(ngx_http_request_t *r,
    ngx_http_tollgate_conf_t *tlcf, ngx_http_tollgate_version_t *version,
    tollgate_bytes *headers, tollgate_attributes *a);
static ngx_int_t ngx_http_tollgate_headers(ngx_http_request_t *r,
    ngx_http_tollgate_version_t *version, tollgate_bytes *values);
static ngx_int_t ngx_http_tollgate_join(ngx_http_request_t *r,
    ngx_str_t *name, tollgate_bytes *value);
static ngx_uint_t ngx_http_tollgate_count_policies(
    ngx_http_tollgate_version_t *version, tollgate_counters **counters,
    tollgate_answer *answer, ngx_uint_t dry_run);
static ngx_int_t ngx_http_tollgate_hold(ngx_http_request_t *r,
    ngx_http_tollgate_zone_t *zone, tollgate_answer *answer);
static ngx_int_t ngx_http_tollgate_report(ngx_http_request_t *r,
    ngx_http_tollgate_ctx_t *ctx, tollgate_answer *answer);
static void ngx_http_tollgate_release(void *data);


/* none, one or all of the policy's limits that the answer is about */

#define ngx_http_tollgate_outcome(layer, is)                                  \
    ((layer)->outcome == TOLLGATE_OUTCOME_##is)


char *
ngx_http_tollgate_policies(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_tollgate_conf_t *tlcf = conf;

    ngx_str_t  *value, zone;
    ngx_uint_t  i;

    if (tlcf->policies_set) {
        return "is duplicate";
    }

    tlcf->policies_set = 1;

    value = cf->args->elts;

    if (cf->args->nelts == 2 && ngx_strcmp(value[1].data, "off") == 0) {
        return NGX_CONF_OK;
    }

    ngx_str_null(&zone);

    for (i = 1; i < cf->args->nelts; i++) {

        if (ngx_strncmp(value[i].data, "zone=", 5) == 0) {
            zone.data = value[i].data + 5;
            zone.len = value[i].len - 5;
            continue;
        }

        if (ngx_strncmp(value[i].data, "route=", 6) == 0
            && value[i].len > 6)
        {
            tlcf->route.data = value[i].data + 6;
            tlcf->route.len = value[i].len - 6;
            continue;
        }

        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid parameter \"%V\"", &value[i]);
        return NGX_CONF_ERROR;
    }

    if (zone.len == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"%V\" must have \"zone\" parameter", &cmd->name);
        return NGX_CONF_ERROR;
    }

    tlcf->policies = ngx_http_tollgate_add_zone(cf, &zone, 0);
    if (tlcf->policies == NULL) {
        return NGX_CONF_ERROR;
    }

    if (!tlcf->policies->policies) {
        tlcf->policies->policies = 1;
        tlcf->policies->used_file = cf->conf_file->file.name.data;
        tlcf->policies->used_line = cf->conf_file->line;
    }

    return NGX_CONF_OK;
}


/*
 * NGX_DECLINED: no policy is for this request, or none could be asked;
 * NGX_AGAIN: the answer comes later, under the number *pending.
 */

ngx_int_t
ngx_http_tollgate_ask(ngx_http_request_t *r, ngx_http_tollgate_conf_t *tlcf,
    ngx_http_tollgate_ctx_t *ctx, uint64_t now, tollgate_answer *answer,
    uint64_t *pending)
{
    ngx_uint_t                    i;
    tollgate_bytes                headers[TOLLGATE_MAX_HEADERS];
    tollgate_status               status;
    tollgate_counters           **counters;
    tollgate_attributes           a;
    ngx_http_tollgate_zone_t     *zone;
    ngx_http_tollgate_engine_t   *engine;
    ngx_http_tollgate_version_t  *version;

    zone = tlcf->policies;
    engine = zone->engine;
    version = zone->rules->version;

    if (ngx_http_tollgate_attributes(r, tlcf, version, headers, &a) != NGX_OK)
    {
        return NGX_DECLINED;
    }

    *pending = 0;

    if (engine) {
        status = tollgate_redis_check(engine->redis, version->rules,
                                      &zone->table, engine->conf->sh->metrics,
                                      &a, now, (uintptr_t) ctx, answer,
                                      pending);

        /* what is to be sent goes out together, at the end of the loop */

        ngx_post_event(&engine->flush, &ngx_posted_events);

    } else {
        status = tollgate_rules_check(version->rules, &zone->table, &a, now,
                                      answer);
    }

    if (status == TOLLGATE_OK) {

        if (zone->sh->histogram) {
            (void) tollgate_histogram_record(zone->sh->histogram,
                                             ngx_http_tollgate_now() - now);
        }

        if (*pending) {
            return NGX_AGAIN;
        }

        if (!answer->allowed && !answer->missing[0] && zone->sh->top) {

            if (engine) {
                (void) tollgate_top_record_answer(zone->sh->top,
                                                  version->rules,
                                                  &zone->table, &a, answer);

            } else {
                (void) tollgate_top_record(zone->sh->top, version->rules,
                                           &zone->table, &a, now);
            }
        }

        return (answer->count || !answer->allowed) ? NGX_OK : NGX_DECLINED;
    }

    /* a limiter that cannot decide is never the outage: the request passes */

    counters = version->counters + zone->place * version->npolicies;

    for (i = 0; i < version->npolicies; i++) {
        (void) tollgate_counters_error(counters[i]);
    }

    ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                  "the policies of zone \"%V\" could not decide, "
                  "the request passes: %s", &zone->name,
                  tollgate_status_str(status));

    return NGX_DECLINED;
}


/* an answer that was waited for: whom does it deny? */

void
ngx_http_tollgate_tell_top(ngx_http_request_t *r,
    ngx_http_tollgate_conf_t *tlcf, ngx_http_tollgate_version_t *version,
    tollgate_answer *answer)
{
    tollgate_bytes             headers[TOLLGATE_MAX_HEADERS];
    tollgate_attributes        a;
    ngx_http_tollgate_zone_t  *zone;

    zone = tlcf->policies;

    if (!answer->allowed
        && zone->sh->top
        && ngx_http_tollgate_attributes(r, tlcf, version, headers, &a)
           == NGX_OK)
    {
        (void) tollgate_top_record_answer(zone->sh->top, version->rules,
                                          &zone->table, &a, answer);
    }
}


static ngx_int_t
ngx_http_tollgate_attributes(ngx_http_request_t *r,
    ngx_http_tollgate_conf_t *tlcf, ngx_http_tollgate_version_t *version,
    tollgate_bytes *headers, tollgate_attributes *a)
{
    ngx_str_t                 *host;
    ngx_http_core_srv_conf_t  *cscf;

    host = &r->headers_in.server;

    if (host->len == 0) {
        cscf = ngx_http_get_module_srv_conf(r, ngx_http_core_module);
        host = &cscf->server_name;
    }

    a->struct_size = sizeof(tollgate_attributes);
    a->reserved = 0;
    a->route.data = tlcf->route.data;
    a->route.len = tlcf->route.len;
    a->method.data = r->method_name.data;
    a->method.len = r->method_name.len;
    a->host.data = host->data;
    a->host.len = host->len;
    a->path.data = r->uri.data;
    a->path.len = r->uri.len;
    a->peer.data = r->connection->addr_text.data;
    a->peer.len = r->connection->addr_text.len;
    a->headers = headers;
    a->header_count = version->nheaders;

    return ngx_http_tollgate_headers(r, version, headers);
}


/* the fields that the rules name, in one walk over those of the request */

static ngx_int_t
ngx_http_tollgate_headers(ngx_http_request_t *r,
    ngx_http_tollgate_version_t *version, tollgate_bytes *values)
{
    uint64_t          joined;
    ngx_str_t        *name;
    ngx_uint_t        i, k;
    ngx_table_elt_t  *h;
    ngx_list_part_t  *part;

    if (version->nheaders == 0) {
        return NGX_OK;
    }

    ngx_memzero(values, version->nheaders * sizeof(tollgate_bytes));

    joined = 0;

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

        if (h[i].lowcase_key == NULL
            || !(version->lengths & ((uint64_t) 1 << (h[i].key.len & 63))))
        {
            continue;
        }

        for (k = 0; k < version->nheaders; k++) {

            name = &version->headers[k];

            if (h[i].key.len != name->len
                || ngx_memcmp(h[i].lowcase_key, name->data, name->len) != 0)
            {
                continue;
            }

            if (values[k].data == NULL) {
                values[k].data = h[i].value.data;
                values[k].len = h[i].value.len;

            } else if (!(joined & ((uint64_t) 1 << k))) {

                if (ngx_http_tollgate_join(r, name, &values[k]) != NGX_OK) {
                    return NGX_ERROR;
                }

                joined |= (uint64_t) 1 << k;
            }

            break;
        }
    }

    return NGX_OK;
}


/*
 * A field that is there several times is one list: what a proxy appended to
 * a chain must count whether it did so on the client's line or on its own.
 */

static ngx_int_t
ngx_http_tollgate_join(ngx_http_request_t *r, ngx_str_t *name,
    tollgate_bytes *value)
{
    size_t            len;
    u_char           *p, *start;
    ngx_uint_t        i, pass;
    ngx_table_elt_t  *h;
    ngx_list_part_t  *part;

    len = 0;
    start = NULL;
    p = NULL;

    for (pass = 0; pass < 2; pass++) {

        if (pass) {
            start = ngx_pnalloc(r->pool, len);
            if (start == NULL) {
                return NGX_ERROR;
            }

            p = start;
        }

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

            if (h[i].lowcase_key == NULL
                || h[i].key.len != name->len
                || ngx_memcmp(h[i].lowcase_key, name->data, name->len) != 0)
            {
                continue;
            }

            if (pass == 0) {
                len += h[i].value.len + 2;
                continue;
            }

            if (p != start) {
                *p++ = ',';
                *p++ = ' ';
            }

            p = ngx_cpymem(p, h[i].value.data, h[i].value.len);
        }
    }

    value->data = start;
    value->len = p - start;

    return NGX_OK;
}


/* counts the answer, keeps its holds, and tells it if it is the tightest */

ngx_int_t
ngx_http_tollgate_take(ngx_http_request_t *r, ngx_http_tollgate_conf_t *tlcf,
    ngx_http_tollgate_ctx_t *ctx, ngx_http_tollgate_version_t *version,
    tollgate_answer *answer)
{
    ngx_uint_t                 would_deny;
    ngx_http_tollgate_zone_t  *zone;

    zone = tlcf->policies;
    ctx->source = answer->source;

    if (answer->degraded && zone->engine) {
        ngx_http_tollgate_tell_fallback(zone->engine, r->connection->log);
    }

    would_deny = ngx_http_tollgate_count_policies(version,
                             version->counters
                             + zone->place * version->npolicies,
                             answer, tlcf->dry_run);

    if (would_deny) {
        ngx_log_error(tlcf->log_level, r->connection->log, 0,
                      "limiting requests, dry run, by a policy "
                      "of zone \"%V\"", &zone->name);
    }

    if (ngx_http_tollgate_hold(r, zone, answer) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (answer->allowed
        && ctx->zone
        && (answer->tightest >= answer->count
            || answer->layers[answer->tightest].decision.remaining
               >= ctx->decision.remaining))
    {
        return NGX_OK;
    }

    ctx->zone = zone;
    ctx->policy = 1;
    ctx->fields = tlcf->dry_run ? TOLLGATE_FIELDS_OFF
                  : (tlcf->family == NGX_CONF_UNSET_UINT) ? version->fields
                  : tlcf->family;

    if (answer->allowed && answer->tightest >= answer->count) {

        /* nothing is enforced, and clients see nothing of it */

        ctx->limit = NULL;
        ctx->name.len = 0;
        ctx->name.data = (u_char *) "";
        ctx->decision = answer->layers[0].decision;
        ctx->decision.allowed = 1;
        ctx->status = would_deny ? NGX_HTTP_TOLLGATE_REJECTED_DRY_RUN : 0;

        return NGX_OK;
    }

    return ngx_http_tollgate_report(r, ctx, answer);
}


/*
 * A policy counts once, whatever the number of its limits: when one of them
 * denies as rejected; when another policy's did, and it was not charged, not
 * at all.  Returns how many would deny, were it not for their dry run.
 */

static ngx_uint_t
ngx_http_tollgate_count_policies(ngx_http_tollgate_version_t *version,
    tollgate_counters **counters, tollgate_answer *answer, ngx_uint_t dry_run)
{
    ngx_uint_t          i, to, degraded, would_deny;
    tollgate_layer     *layer, *next;
    tollgate_policy     policy;
    tollgate_decision   d;

    if (answer->missing[0]) {

        ngx_memzero(&d, sizeof(tollgate_decision));

        for (i = 0; i < version->npolicies; i++) {

            if (tollgate_rules_policy(version->rules, i, &policy)
                == TOLLGATE_OK
                && ngx_strncmp(policy.name, answer->policy, policy.name_len)
                   == 0
                && answer->policy[policy.name_len] == '\0')
            {
                (void) tollgate_counters_record(counters[i], &d, dry_run);
                break;
            }
        }

        return 0;
    }

    would_deny = 0;

    for (i = 0; i < answer->count; i = to) {

        layer = &answer->layers[i];
        degraded = answer->degraded >> i & 1;

        for (to = i + 1; to < answer->count; to++) {

            next = &answer->layers[to];

            if (next->policy != layer->policy) {
                break;
            }

            degraded |= answer->degraded >> to & 1;

            if (ngx_http_tollgate_outcome(next, DENIED)
                || ngx_http_tollgate_outcome(next, WOULD_DENY))
            {
                layer = next;
            }
        }

        if (layer->policy >= version->npolicies) {
            continue;
        }

        if (degraded) {
            (void) tollgate_counters_error(counters[layer->policy]);
        }

        if (ngx_http_tollgate_outcome(layer, SPARED)) {
            continue;
        }

        /* the rules make nobody wait, and so nobody is counted as delayed */

        d = layer->decision;
        d.delay_ns = 0;

        if (ngx_http_tollgate_outcome(layer, WOULD_DENY)) {
            d.allowed = 0;
            would_deny++;
        }

        (void) tollgate_counters_record(counters[layer->policy], &d,
                               dry_run
                               || ngx_http_tollgate_outcome(layer, WOULD_DENY));
    }

    return would_deny;
}


/* units in flight are given back when the request ends, however it ends */

static ngx_int_t
ngx_http_tollgate_hold(ngx_http_request_t *r, ngx_http_tollgate_zone_t *zone,
    tollgate_answer *answer)
{
    ngx_uint_t                  i, n;
    ngx_pool_cleanup_t         *cln;
    ngx_http_tollgate_holds_t  *holds;

    n = 0;

    for (i = 0; i < answer->count; i++) {
        n += (answer->layers[i].hold.units != 0);
    }

    if (n == 0) {
        return NGX_OK;
    }

    cln = ngx_pool_cleanup_add(r->pool, sizeof(ngx_http_tollgate_holds_t)
                                        + n * sizeof(tollgate_hold));
    if (cln == NULL) {

        for (i = 0; i < answer->count; i++) {
            ngx_http_tollgate_release_hold(zone, &answer->layers[i].hold);
        }

        return NGX_ERROR;
    }

    holds = cln->data;
    holds->zone = zone;
    holds->n = 0;

    for (i = 0; i < answer->count; i++) {
        if (answer->layers[i].hold.units) {
            holds->holds[holds->n++] = answer->layers[i].hold;
        }
    }

    cln->handler = ngx_http_tollgate_release;

    return NGX_OK;
}


static ngx_int_t
ngx_http_tollgate_report(ngx_http_request_t *r, ngx_http_tollgate_ctx_t *ctx,
    tollgate_answer *answer)
{
    u_char          *p;
    tollgate_limit  *limit;

    limit = ngx_palloc(r->pool, sizeof(tollgate_limit)
                                + 2 * TOLLGATE_NAME_SIZE);
    if (limit == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    p = (u_char *) limit + sizeof(tollgate_limit);

    ctx->name.data = p;
    p = ngx_cpystrn(p, (u_char *) answer->policy, TOLLGATE_NAME_SIZE);
    ctx->name.len = p - ctx->name.data;

    ctx->denial = answer->status;

    if (answer->tightest < answer->count) {
        *limit = answer->limit;
        ctx->limit = limit;
        ctx->decision = answer->layers[answer->tightest].decision;
        ctx->decision.delay_ns = answer->delay_ns;

        return NGX_OK;
    }

    /* nobody was asked, as the request does not tell who it comes from */

    p++;
    ctx->missing.data = p;
    p = ngx_cpystrn(p, (u_char *) answer->missing, TOLLGATE_NAME_SIZE);
    ctx->missing.len = p - ctx->missing.data;

    ctx->limit = NULL;
    ngx_memzero(&ctx->decision, sizeof(tollgate_decision));

    return NGX_OK;
}


static void
ngx_http_tollgate_release(void *data)
{
    ngx_http_tollgate_holds_t  *holds = data;

    ngx_uint_t  i;

    for (i = 0; i < holds->n; i++) {
        ngx_http_tollgate_release_hold(holds->zone, &holds->holds[i]);
    }
}
