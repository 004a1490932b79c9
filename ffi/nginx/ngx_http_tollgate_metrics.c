
/*
 * "tollgate_metrics": the counters of this configuration's zones and limits,
 * as Prometheus text or, with "?format=json", as JSON.
 */


#include "ngx_http_tollgate.h"


/* more than the longest lines of one zone or limit, names included */
#define NGX_HTTP_TOLLGATE_ZONE_ROOM   4096
#define NGX_HTTP_TOLLGATE_LIMIT_ROOM  2048
#define NGX_HTTP_TOLLGATE_STORE_ROOM  16384


typedef struct {
    ngx_http_tollgate_zone_t      *zone;
    tollgate_table_stats           stats;
    uint64_t                       live;
    ngx_array_t                    limits;   /* one of each name */
} ngx_http_tollgate_zone_page_t;



static ngx_int_t ngx_http_tollgate_metrics_handler(ngx_http_request_t *r);
static ngx_int_t ngx_http_tollgate_read_zones(ngx_http_request_t *r,
    ngx_uint_t live, ngx_array_t *pages, size_t *room);
static u_char *ngx_http_tollgate_prometheus(u_char *p, ngx_array_t *pages,
    ngx_http_tollgate_redis_t *redis, ngx_uint_t live);
static u_char *ngx_http_tollgate_json(u_char *p, ngx_array_t *pages,
    ngx_http_tollgate_redis_t *redis, ngx_uint_t live);


static ngx_http_tollgate_metric_t  ngx_http_tollgate_zone_metrics[] = {

    { "tollgate_zone_keys_capacity", "gauge",
      "Keys that the zone has room for.",
      offsetof(tollgate_table_stats, capacity) },

    { "tollgate_zone_keys_used", "gauge",
      "Places of the zone that hold a key, idle ones too.",
      offsetof(tollgate_table_stats, used) },

    { "tollgate_zone_evictions_total", "counter",
      "Keys that were forgotten before they were idle, for want of room.",
      offsetof(tollgate_table_stats, evictions) },

    { "tollgate_zone_rows_capacity", "gauge",
      "Keys that sliding logs and concurrency limits have room for.",
      offsetof(tollgate_table_stats, rows) },

    { "tollgate_zone_rows_used", "gauge",
      "Rows that hold a key, idle ones too.",
      offsetof(tollgate_table_stats, rows_used) },

    { "tollgate_zone_row_evictions_total", "counter",
      "Rows that were forgotten before they were idle, for want of room.",
      offsetof(tollgate_table_stats, row_evictions) },

    { NULL, NULL, NULL, 0 }
};


ngx_http_tollgate_metric_t  ngx_http_tollgate_results[] = {

    { "allowed", NULL, NULL,
      offsetof(tollgate_counters_snapshot, allowed) },

    { "delayed", NULL, NULL,
      offsetof(tollgate_counters_snapshot, delayed) },

    { "rejected", NULL, NULL,
      offsetof(tollgate_counters_snapshot, rejected) },

    { "delayed_dry_run", NULL, NULL,
      offsetof(tollgate_counters_snapshot, delayed_dry_run) },

    { "rejected_dry_run", NULL, NULL,
      offsetof(tollgate_counters_snapshot, rejected_dry_run) },

    { "error", NULL, NULL,
      offsetof(tollgate_counters_snapshot, errors) },

    { NULL, NULL, NULL, 0 }
};


char *
ngx_http_tollgate_metrics(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_core_loc_conf_t  *clcf;

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);

    if (clcf->handler == ngx_http_tollgate_metrics_handler) {
        return "is duplicate";
    }

    clcf->handler = ngx_http_tollgate_metrics_handler;

    return NGX_CONF_OK;
}


static ngx_int_t
ngx_http_tollgate_metrics_handler(ngx_http_request_t *r)
{
    size_t        room;
    ngx_int_t     rc;
    ngx_buf_t    *b;
    ngx_str_t     value;
    ngx_uint_t    json, live;
    ngx_array_t   pages;
    ngx_chain_t   out;

    ngx_http_tollgate_main_conf_t  *tmcf;

    tmcf = ngx_http_get_module_main_conf(r, ngx_http_tollgate_module);

    if (!(r->method & (NGX_HTTP_GET|NGX_HTTP_HEAD))) {
        return NGX_HTTP_NOT_ALLOWED;
    }

    rc = ngx_http_discard_request_body(r);

    if (rc != NGX_OK) {
        return rc;
    }

    json = ngx_http_arg(r, (u_char *) "format", 6, &value) == NGX_OK
           && value.len == 4
           && ngx_strncmp(value.data, "json", 4) == 0;

    /* counting keys that are not idle reads the whole table, so on demand */

    live = ngx_http_arg(r, (u_char *) "live", 4, &value) == NGX_OK
           && value.len == 1 && value.data[0] == '1';

    if (ngx_http_tollgate_read_zones(r, live, &pages, &room) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    b = ngx_create_temp_buf(r->pool, room);
    if (b == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    b->last = json ? ngx_http_tollgate_json(b->pos, &pages, tmcf->redis, live)
                   : ngx_http_tollgate_prometheus(b->pos, &pages, tmcf->redis,
                                                  live);

    b->last_buf = (r == r->main) ? 1 : 0;
    b->last_in_chain = 1;

    out.buf = b;
    out.next = NULL;

    if (json) {
        ngx_str_set(&r->headers_out.content_type, "application/json");

    } else {
        ngx_str_set(&r->headers_out.content_type,
                    "text/plain; version=0.0.4; charset=utf-8");
    }

    r->headers_out.content_type_len = r->headers_out.content_type.len;
    r->headers_out.content_type_lowcase = NULL;

    r->headers_out.status = NGX_HTTP_OK;
    r->headers_out.content_length_n = b->last - b->pos;

    rc = ngx_http_send_header(r);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }

    return ngx_http_output_filter(r, &out);
}


static ngx_int_t
ngx_http_tollgate_read_zones(ngx_http_request_t *r, ngx_uint_t live,
    ngx_array_t *pages, size_t *room)
{
    uint64_t                         now;
    ngx_uint_t                       i, n, k;
    struct timespec                  ts;
    ngx_http_tollgate_zone_t       **zones;
    ngx_http_tollgate_limit_t      **limits, **seen, **slot;
    ngx_http_tollgate_main_conf_t   *tmcf;
    ngx_http_tollgate_zone_page_t   *page;

    tmcf = ngx_http_get_module_main_conf(r, ngx_http_tollgate_module);

    zones = tmcf->zones.elts;

    if (ngx_array_init(pages, r->pool, tmcf->zones.nelts + 1,
                       sizeof(ngx_http_tollgate_zone_page_t))
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    *room = NGX_HTTP_TOLLGATE_ZONE_ROOM + NGX_HTTP_TOLLGATE_STORE_ROOM;

    for (i = 0; i < tmcf->zones.nelts; i++) {

        page = ngx_array_push(pages);
        if (page == NULL) {
            return NGX_ERROR;
        }

        ngx_memzero(page, sizeof(ngx_http_tollgate_zone_page_t));

        page->zone = zones[i];

        if (tollgate_table_stats_read(&zones[i]->table, &page->stats)
            != TOLLGATE_OK)
        {
            return NGX_ERROR;
        }

        if (live) {
            (void) clock_gettime(CLOCK_MONOTONIC, &ts);
            now = (uint64_t) ts.tv_sec * 1000000000 + ts.tv_nsec;

            (void) tollgate_table_live(&zones[i]->table, now, &page->live);
        }

        if (ngx_array_init(&page->limits, r->pool,
                           zones[i]->limits.nelts + 1, sizeof(void *))
            != NGX_OK)
        {
            return NGX_ERROR;
        }

        limits = zones[i]->limits.elts;
        seen = page->limits.elts;

        for (n = 0; n < zones[i]->limits.nelts; n++) {

            for (k = 0; k < page->limits.nelts; k++) {
                if (seen[k]->counters == limits[n]->counters) {
                    break;
                }
            }

            if (k == page->limits.nelts) {
                slot = ngx_array_push(&page->limits);
                *slot = limits[n];
            }
        }

        *room += NGX_HTTP_TOLLGATE_ZONE_ROOM
                 + page->limits.nelts * NGX_HTTP_TOLLGATE_LIMIT_ROOM
                 + ngx_http_tollgate_policies_room(zones[i]);
    }

    return NGX_OK;
}


static u_char *
ngx_http_tollgate_prometheus(u_char *p, ngx_array_t *pages,
    ngx_http_tollgate_redis_t *redis, ngx_uint_t live)
{
    ngx_uint_t                       i, n;
    tollgate_counters_snapshot       snapshot;
    ngx_http_tollgate_limit_t      **limits;
    ngx_http_tollgate_metric_t      *m;
    ngx_http_tollgate_zone_page_t   *page;

    page = pages->elts;

    p = ngx_sprintf(p, "# HELP tollgate_requests_total Decisions by limit "
                    "and result.\n"
                    "# TYPE tollgate_requests_total counter\n");

    for (i = 0; i < pages->nelts; i++) {

        limits = page[i].limits.elts;

        for (n = 0; n < page[i].limits.nelts; n++) {

            ngx_memzero(&snapshot, sizeof(tollgate_counters_snapshot));
            (void) tollgate_counters_read(limits[n]->counters, &snapshot);

            for (m = ngx_http_tollgate_results; m->name; m++) {
                p = ngx_sprintf(p, "tollgate_requests_total{zone=\"%V\","
                                "limit=\"%V\",result=\"%s\"} %uL\n",
                                &page[i].zone->name, &limits[n]->name,
                                m->name,
                                ngx_http_tollgate_number(&snapshot, m));
            }
        }
    }

    for (i = 0; i < pages->nelts; i++) {
        if (page[i].zone->rules) {
            p = ngx_http_tollgate_prometheus_rules(p, page[i].zone->rules);
            break;
        }
    }

    if (redis) {
        p = ngx_http_tollgate_prometheus_store(p, redis);
    }

    p = ngx_sprintf(p, "# HELP tollgate_limit_info What each limit is.\n"
                    "# TYPE tollgate_limit_info gauge\n");

    for (i = 0; i < pages->nelts; i++) {

        limits = page[i].limits.elts;

        for (n = 0; n < page[i].limits.nelts; n++) {
            p = ngx_sprintf(p, "tollgate_limit_info{zone=\"%V\",limit=\"%V\","
                            "is=\"%V\"} 1\n", &page[i].zone->name,
                            &limits[n]->name, &limits[n]->limit_text);
        }
    }

    p = ngx_sprintf(p, "# HELP tollgate_zone_bytes Size of the zone.\n"
                    "# TYPE tollgate_zone_bytes gauge\n");

    for (i = 0; i < pages->nelts; i++) {
        p = ngx_sprintf(p, "tollgate_zone_bytes{zone=\"%V\"} %uz\n",
                        &page[i].zone->name, page[i].zone->size);
    }

    for (m = ngx_http_tollgate_zone_metrics; m->name; m++) {

        p = ngx_sprintf(p, "# HELP %s %s\n# TYPE %s %s\n", m->name, m->help,
                        m->name, m->type);

        for (i = 0; i < pages->nelts; i++) {
            p = ngx_sprintf(p, "%s{zone=\"%V\"} %uL\n", m->name,
                            &page[i].zone->name,
                            ngx_http_tollgate_number(&page[i].stats, m));
        }
    }

    if (live) {

        p = ngx_sprintf(p, "# HELP tollgate_zone_keys_live Keys that are not "
                        "idle.\n# TYPE tollgate_zone_keys_live gauge\n");

        for (i = 0; i < pages->nelts; i++) {
            p = ngx_sprintf(p, "tollgate_zone_keys_live{zone=\"%V\"} %uL\n",
                            &page[i].zone->name, page[i].live);
        }
    }

    return p;
}


static u_char *
ngx_http_tollgate_json(u_char *p, ngx_array_t *pages,
    ngx_http_tollgate_redis_t *redis, ngx_uint_t live)
{
    ngx_uint_t                       i, n;
    tollgate_counters_snapshot       snapshot;
    ngx_http_tollgate_limit_t      **limits;
    ngx_http_tollgate_rules_t       *rules;
    ngx_http_tollgate_metric_t      *m;
    ngx_http_tollgate_zone_page_t   *page;

    page = pages->elts;
    rules = NULL;

    p = ngx_sprintf(p, "{\"version\":\"%s\",\"zones\":[", tollgate_version());

    for (i = 0; i < pages->nelts; i++) {

        p = ngx_sprintf(p, "%s{\"name\":\"%V\",\"bytes\":%uz,"
                        "\"keys\":{\"capacity\":%uL,\"used\":%uL,"
                        "\"evictions\":%uL",
                        i ? "," : "", &page[i].zone->name, page[i].zone->size,
                        page[i].stats.capacity, page[i].stats.used,
                        page[i].stats.evictions);

        if (live) {
            p = ngx_sprintf(p, ",\"live\":%uL", page[i].live);
        }

        p = ngx_sprintf(p, "},\"rows\":{\"capacity\":%uL,\"used\":%uL,"
                        "\"evictions\":%uL},\"limits\":[",
                        page[i].stats.rows, page[i].stats.rows_used,
                        page[i].stats.row_evictions);

        limits = page[i].limits.elts;

        for (n = 0; n < page[i].limits.nelts; n++) {

            ngx_memzero(&snapshot, sizeof(tollgate_counters_snapshot));
            (void) tollgate_counters_read(limits[n]->counters, &snapshot);

            p = ngx_sprintf(p, "%s{\"name\":\"%V\",\"limit\":\"%V\"",
                            n ? "," : "", &limits[n]->name,
                            &limits[n]->limit_text);

            for (m = ngx_http_tollgate_results; m->name; m++) {
                p = ngx_sprintf(p, ",\"%s\":%uL", m->name,
                                ngx_http_tollgate_number(&snapshot, m));
            }

            *p++ = '}';
        }

        *p++ = ']';

        p = ngx_http_tollgate_json_policies(p, page[i].zone);

        *p++ = '}';

        if (page[i].zone->rules) {
            rules = page[i].zone->rules;
        }
    }

    *p++ = ']';

    if (rules) {
        p = ngx_http_tollgate_json_rules(p, rules);
    }

    if (redis) {
        p = ngx_http_tollgate_json_store(p, redis);
    }

    return ngx_cpymem(p, "}\n", 2);
}
