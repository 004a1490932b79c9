
/*
 * Redis on the page of metrics: what was asked, how it went, and how long it
 * took; of all workers together.
 */


#include "ngx_http_tollgate.h"


/* 16 microseconds to 1 second */
#define NGX_HTTP_TOLLGATE_LEAST_POWER  14
#define NGX_HTTP_TOLLGATE_MOST_POWER   30


static ngx_http_tollgate_metric_t  ngx_http_tollgate_store_metrics[] = {

    { "calls", "counter", "Calls that were sent to Redis.",
      offsetof(tollgate_store_snapshot, calls) },

    { "replies", "counter", "Calls that were answered.",
      offsetof(tollgate_store_snapshot, replies) },

    { "lease_hits", "counter",
      "Answers of a policy from tokens that were fetched ahead.",
      offsetof(tollgate_store_snapshot, lease_hits) },

    { "denial_hits", "counter",
      "Answers of a policy from a denial that still holds.",
      offsetof(tollgate_store_snapshot, denial_hits) },

    { "prefetches", "counter", "Calls to fetch more before anyone waits.",
      offsetof(tollgate_store_snapshot, prefetches) },

    { "give_backs", "counter", "Calls that gave back what was not used.",
      offsetof(tollgate_store_snapshot, give_backs) },

    { "timeouts", "counter", "Calls that were not answered in time.",
      offsetof(tollgate_store_snapshot, timeouts) },

    { "failures", "counter",
      "Calls that failed because of Redis or the connection.",
      offsetof(tollgate_store_snapshot, failures) },

    { "key_failures", "counter",
      "Calls that failed because of what their key holds.",
      offsetof(tollgate_store_snapshot, key_failures) },

    { "fallback_local", "counter",
      "Answers of a policy by this machine alone, as Redis was away.",
      offsetof(tollgate_store_snapshot, fallback_local) },

    { "fallback_allow", "counter",
      "Answers of a policy that allows, as Redis was away.",
      offsetof(tollgate_store_snapshot, fallback_allow) },

    { "fallback_deny", "counter",
      "Answers of a policy that denies, as Redis was away.",
      offsetof(tollgate_store_snapshot, fallback_deny) },

    { "breaker_opened", "counter", "How often a worker's breaker opened.",
      offsetof(tollgate_store_snapshot, opened) },

    { "connections", "counter", "Connections that were made.",
      offsetof(tollgate_store_snapshot, connected) },

    { "breakers_open", "gauge",
      "Workers whose breaker is open or on probe, 0 when all is well.",
      offsetof(tollgate_store_snapshot, open) },

    { "waiting", "gauge", "Requests that wait for an answer.",
      offsetof(tollgate_store_snapshot, waiting) },

    { NULL, NULL, NULL, 0 }
};


u_char *
ngx_http_tollgate_prometheus_store(u_char *p, ngx_http_tollgate_redis_t *redis)
{
    char                         *total;
    uint64_t                      ns;
    ngx_uint_t                    k;
    tollgate_store_snapshot       s;
    ngx_http_tollgate_metric_t   *m;
    tollgate_histogram_snapshot  *h;

    if (tollgate_store_metrics_read(redis->sh->metrics, &s) != TOLLGATE_OK) {
        return p;
    }

    for (m = ngx_http_tollgate_store_metrics; m->name; m++) {

        total = (m->type[0] == 'c') ? "_total" : "";

        p = ngx_sprintf(p, "# HELP tollgate_store_%s%s %s\n"
                        "# TYPE tollgate_store_%s%s %s\n"
                        "tollgate_store_%s%s %uL\n", m->name, total, m->help,
                        m->name, total, m->type, m->name, total,
                        ngx_http_tollgate_number(&s, m));
    }

    p = ngx_sprintf(p, "# HELP tollgate_store_seconds How long Redis takes to "
                    "answer.\n"
                    "# TYPE tollgate_store_seconds histogram\n");

    h = &s.latency;

    for (k = NGX_HTTP_TOLLGATE_LEAST_POWER;
         k <= NGX_HTTP_TOLLGATE_MOST_POWER;
         k++)
    {
        ns = (uint64_t) 1 << k;

        p = ngx_sprintf(p, "tollgate_store_seconds_bucket{le=\"%uL.%09uL\"} "
                        "%uL\n", ns / 1000000000, ns % 1000000000,
                        h->at_most[k]);
    }

    ns = h->sum_ns;

    return ngx_sprintf(p, "tollgate_store_seconds_bucket{le=\"+Inf\"} %uL\n"
                       "tollgate_store_seconds_sum %uL.%09uL\n"
                       "tollgate_store_seconds_count %uL\n", h->count,
                       ns / 1000000000, ns % 1000000000, h->count);
}


u_char *
ngx_http_tollgate_json_store(u_char *p, ngx_http_tollgate_redis_t *redis)
{
    tollgate_store_snapshot      s;
    ngx_http_tollgate_metric_t  *m;

    if (tollgate_store_metrics_read(redis->sh->metrics, &s) != TOLLGATE_OK) {
        return p;
    }

    p = ngx_cpymem(p, ",\"store\":{", 10);

    for (m = ngx_http_tollgate_store_metrics; m->name; m++) {
        p = ngx_sprintf(p, "\"%s\":%uL,", m->name,
                        ngx_http_tollgate_number(&s, m));
    }

    return ngx_sprintf(p, "\"latency_ns\":{\"count\":%uL,\"p50\":%uL,"
                       "\"p99\":%uL,\"p999\":%uL}}", s.latency.count,
                       s.latency.p50_ns, s.latency.p99_ns, s.latency.p999_ns);
}
