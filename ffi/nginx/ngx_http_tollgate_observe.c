
/*
 * The rules on the page of metrics: decisions by policy, the keys that are
 * denied most, how long an answer takes, and the state of the file.
 */


#include "ngx_http_tollgate.h"


/* more than the longest lines of one policy, or of a zone beside them */
#define NGX_HTTP_TOLLGATE_POLICY_ROOM  2048
#define NGX_HTTP_TOLLGATE_VIEWS_ROOM   (8192 + TOLLGATE_TOP_KEYS * 1024)

/* a label of each key is a time series, so there are few of them */
#define NGX_HTTP_TOLLGATE_TOP_LINES    10

/* 128 ns to 16 ms */
#define NGX_HTTP_TOLLGATE_LEAST_POWER  7
#define NGX_HTTP_TOLLGATE_MOST_POWER   24


static ngx_uint_t ngx_http_tollgate_next_policy(
    ngx_http_tollgate_zone_t *zone, ngx_uint_t *n, tollgate_policy *policy,
    tollgate_counters_snapshot *snapshot);
static u_char *ngx_http_tollgate_prometheus_views(u_char *p,
    ngx_http_tollgate_rules_t *rules);
static u_char *ngx_http_tollgate_quote(u_char *p, char *text);


size_t
ngx_http_tollgate_policies_room(ngx_http_tollgate_zone_t *zone)
{
    if (zone->rules == NULL) {
        return 0;
    }

    return zone->rules->version->npolicies * NGX_HTTP_TOLLGATE_POLICY_ROOM
           + NGX_HTTP_TOLLGATE_VIEWS_ROOM;
}


u_char *
ngx_http_tollgate_prometheus_rules(u_char *p, ngx_http_tollgate_rules_t *rules)
{
    ngx_uint_t                        i, n;
    tollgate_policy                   policy;
    ngx_http_tollgate_zone_t        **zones;
    tollgate_counters_snapshot        snapshot;
    ngx_http_tollgate_metric_t       *m;
    ngx_http_tollgate_rules_state_t  *state;

    zones = rules->zones.elts;
    state = &zones[0]->sh->rules;

    p = ngx_sprintf(p, "# HELP tollgate_policy_requests_total Decisions by "
                    "policy and result.\n"
                    "# TYPE tollgate_policy_requests_total counter\n");

    for (i = 0; i < rules->zones.nelts; i++) {

        n = 0;

        while (ngx_http_tollgate_next_policy(zones[i], &n, &policy, &snapshot))
        {
            for (m = ngx_http_tollgate_results; m->name; m++) {
                p = ngx_sprintf(p, "tollgate_policy_requests_total{"
                                "zone=\"%V\",policy=\"%*s\",result=\"%s\"} "
                                "%uL\n", &zones[i]->name, policy.name_len,
                                policy.name, m->name,
                                ngx_http_tollgate_number(&snapshot, m));
            }
        }
    }

    p = ngx_http_tollgate_prometheus_views(p, rules);

    return ngx_sprintf(p, "# HELP tollgate_rules_policies Policies that this "
                       "worker's rules have.\n"
                       "# TYPE tollgate_rules_policies gauge\n"
                       "tollgate_rules_policies %ui\n"
                       "# HELP tollgate_rules_overrides Rows that give a "
                       "subject other limits.\n"
                       "# TYPE tollgate_rules_overrides gauge\n"
                       "tollgate_rules_overrides %uL\n"
                       "# HELP tollgate_rules_loaded_timestamp_seconds When "
                       "rules were last loaded.\n"
                       "# TYPE tollgate_rules_loaded_timestamp_seconds gauge\n"
                       "tollgate_rules_loaded_timestamp_seconds %uA\n"
                       "# HELP tollgate_rules_last_load_failed 1 when the "
                       "file as it is now is refused.\n"
                       "# TYPE tollgate_rules_last_load_failed gauge\n"
                       "tollgate_rules_last_load_failed %uA\n",
                       rules->version->npolicies, rules->version->overrides,
                       state->loaded_at, state->failed);
}


static u_char *
ngx_http_tollgate_prometheus_views(u_char *p, ngx_http_tollgate_rules_t *rules)
{
    size_t                        count;
    uint64_t                      ns;
    ngx_uint_t                    i, k;
    tollgate_top_key              keys[NGX_HTTP_TOLLGATE_TOP_LINES];
    ngx_http_tollgate_zone_t    **zones;
    tollgate_histogram_snapshot   h;

    zones = rules->zones.elts;

    p = ngx_sprintf(p, "# HELP tollgate_decision_seconds How long rules take "
                    "to answer.\n"
                    "# TYPE tollgate_decision_seconds histogram\n");

    for (i = 0; i < rules->zones.nelts; i++) {

        if (zones[i]->sh->histogram == NULL
            || tollgate_histogram_read(zones[i]->sh->histogram, &h)
               != TOLLGATE_OK)
        {
            continue;
        }

        for (k = NGX_HTTP_TOLLGATE_LEAST_POWER;
             k <= NGX_HTTP_TOLLGATE_MOST_POWER;
             k++)
        {
            p = ngx_sprintf(p, "tollgate_decision_seconds_bucket{zone=\"%V\","
                            "le=\"0.%09uL\"} %uL\n", &zones[i]->name,
                            (uint64_t) 1 << k, h.at_most[k]);
        }

        ns = h.sum_ns;

        p = ngx_sprintf(p, "tollgate_decision_seconds_bucket{zone=\"%V\","
                        "le=\"+Inf\"} %uL\n"
                        "tollgate_decision_seconds_sum{zone=\"%V\"} "
                        "%uL.%09uL\n"
                        "tollgate_decision_seconds_count{zone=\"%V\"} %uL\n",
                        &zones[i]->name, h.count,
                        &zones[i]->name, ns / 1000000000, ns % 1000000000,
                        &zones[i]->name, h.count);
    }

    p = ngx_sprintf(p, "# HELP tollgate_top_denied Denials of the keys that "
                    "are limited most.\n"
                    "# TYPE tollgate_top_denied gauge\n");

    for (i = 0; i < rules->zones.nelts; i++) {

        if (zones[i]->sh->top == NULL
            || tollgate_top_read(zones[i]->sh->top, keys,
                                 NGX_HTTP_TOLLGATE_TOP_LINES, &count)
               != TOLLGATE_OK)
        {
            continue;
        }

        for (k = 0; k < count; k++) {
            p = ngx_sprintf(p, "tollgate_top_denied{zone=\"%V\",policy=\"%s\","
                            "key=\"", &zones[i]->name, keys[k].policy);
            p = ngx_http_tollgate_quote(p, keys[k].key);
            p = ngx_sprintf(p, "\"} %uL\n", keys[k].count);
        }
    }

    return p;
}


/* of one zone: ,"policies":[...],"decision_ns":{...},"top_denied":[...] */

u_char *
ngx_http_tollgate_json_policies(u_char *p, ngx_http_tollgate_zone_t *zone)
{
    size_t                        count, k;
    ngx_uint_t                    n;
    tollgate_policy               policy;
    tollgate_top_key              keys[TOLLGATE_TOP_KEYS];
    tollgate_counters_snapshot    snapshot;
    ngx_http_tollgate_metric_t   *m;
    tollgate_histogram_snapshot   h;

    p = ngx_cpymem(p, ",\"policies\":[", 13);

    n = 0;

    while (ngx_http_tollgate_next_policy(zone, &n, &policy, &snapshot)) {

        p = ngx_sprintf(p, "%s{\"name\":\"%*s\",\"overrides\":%uL",
                        (n > 1) ? "," : "", policy.name_len, policy.name,
                        policy.overrides);

        for (m = ngx_http_tollgate_results; m->name; m++) {
            p = ngx_sprintf(p, ",\"%s\":%uL", m->name,
                            ngx_http_tollgate_number(&snapshot, m));
        }

        *p++ = '}';
    }

    *p++ = ']';

    if (zone->rules && zone->sh->histogram
        && tollgate_histogram_read(zone->sh->histogram, &h) == TOLLGATE_OK)
    {
        p = ngx_sprintf(p, ",\"decision_ns\":{\"count\":%uL,\"p50\":%uL,"
                        "\"p99\":%uL,\"p999\":%uL}", h.count, h.p50_ns,
                        h.p99_ns, h.p999_ns);
    }

    if (zone->rules && zone->sh->top
        && tollgate_top_read(zone->sh->top, keys, TOLLGATE_TOP_KEYS, &count)
           == TOLLGATE_OK)
    {
        p = ngx_cpymem(p, ",\"top_denied\":[", 15);

        for (k = 0; k < count; k++) {
            p = ngx_sprintf(p, "%s{\"policy\":\"%s\",\"key\":\"",
                            k ? "," : "", keys[k].policy);
            p = ngx_http_tollgate_quote(p, keys[k].key);
            p = ngx_sprintf(p, "\",\"count\":%uL,\"error\":%uL}",
                            keys[k].count, keys[k].error);
        }

        *p++ = ']';
    }

    return p;
}


/* this worker's rules, and what all workers know of the file */

u_char *
ngx_http_tollgate_json_rules(u_char *p, ngx_http_tollgate_rules_t *rules)
{
    ngx_http_tollgate_zone_t        **zones;
    ngx_http_tollgate_rules_state_t  *state;

    zones = rules->zones.elts;
    state = &zones[0]->sh->rules;

    return ngx_sprintf(p, ",\"rules\":{\"policies\":%ui,\"overrides\":%uL,"
                       "\"loaded_at\":%uA,\"failed_at\":%uA,"
                       "\"last_load_failed\":%s}",
                       rules->version->npolicies, rules->version->overrides,
                       state->loaded_at, state->failed_at,
                       state->failed ? "true" : "false");
}


/* the n-th policy of this worker's rules, if the zone is asked for them */

static ngx_uint_t
ngx_http_tollgate_next_policy(ngx_http_tollgate_zone_t *zone, ngx_uint_t *n,
    tollgate_policy *policy, tollgate_counters_snapshot *snapshot)
{
    ngx_uint_t                    place;
    ngx_http_tollgate_version_t  *version;

    if (zone->rules == NULL) {
        return 0;
    }

    version = zone->rules->version;

    if (*n >= version->npolicies
        || tollgate_rules_policy(version->rules, *n, policy) != TOLLGATE_OK)
    {
        return 0;
    }

    place = zone->place * version->npolicies + *n;

    ngx_memzero(snapshot, sizeof(tollgate_counters_snapshot));
    (void) tollgate_counters_read(version->counters[place], snapshot);

    (*n)++;

    return 1;
}


/* printable text between quotation marks, for JSON and for a label */

static u_char *
ngx_http_tollgate_quote(u_char *p, char *text)
{
    for ( /* void */ ; *text; text++) {

        if (*text == '"' || *text == '\\') {
            *p++ = '\\';
        }

        *p++ = (u_char) *text;
    }

    return p;
}
