
/*
 * ngx_http_tollgate_module: directives, and the handler of a request.
 *
 * A request is decided once, in the preaccess phase of the first location
 * with limits that it or one of its subrequests reaches.  The answer stays
 * with the main request, where its header filter, the variables and the log
 * read it.
 */


#include "ngx_http_tollgate.h"


static ngx_int_t ngx_http_tollgate_handler(ngx_http_request_t *r);
static ngx_int_t ngx_http_tollgate_enforce(ngx_http_request_t *r,
    ngx_http_tollgate_conf_t *tlcf, ngx_http_tollgate_ctx_t *ctx);
static ngx_int_t ngx_http_tollgate_wait(ngx_http_request_t *r,
    ngx_msec_t delay);
static void ngx_http_tollgate_delay(ngx_http_request_t *r);
static char *ngx_http_tollgate_set_enum(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static void *ngx_http_tollgate_create_main_conf(ngx_conf_t *cf);
static void *ngx_http_tollgate_create_conf(ngx_conf_t *cf);
static char *ngx_http_tollgate_merge_conf(ngx_conf_t *cf, void *parent,
    void *child);
static ngx_int_t ngx_http_tollgate_init(ngx_conf_t *cf);


static ngx_conf_enum_t  ngx_http_tollgate_log_levels[] = {
    { ngx_string("info"), NGX_LOG_INFO },
    { ngx_string("notice"), NGX_LOG_NOTICE },
    { ngx_string("warn"), NGX_LOG_WARN },
    { ngx_string("error"), NGX_LOG_ERR },
    { ngx_null_string, 0 }
};


static ngx_conf_enum_t  ngx_http_tollgate_fields[] = {
    { ngx_string("off"), TOLLGATE_FIELDS_OFF },
    { ngx_string("x-ratelimit"), TOLLGATE_FIELDS_X_RATELIMIT },
    { ngx_string("ratelimit-03"), TOLLGATE_FIELDS_RATELIMIT_03 },
    { ngx_string("ratelimit"), TOLLGATE_FIELDS_RATELIMIT },
    { ngx_null_string, 0 }
};


static ngx_command_t  ngx_http_tollgate_commands[] = {

    { ngx_string("tollgate_zone"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_TAKE2|NGX_CONF_TAKE3|NGX_CONF_TAKE4,
      ngx_http_tollgate_zone,
      NGX_HTTP_MAIN_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("tollgate"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_1MORE,
      ngx_http_tollgate,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("tollgate_headers"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_http_tollgate_set_enum,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_tollgate_conf_t, fields),
      &ngx_http_tollgate_fields },

    { ngx_string("tollgate_dry_run"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_FLAG,
      ngx_conf_set_flag_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_tollgate_conf_t, dry_run),
      NULL },

    { ngx_string("tollgate_log_level"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_http_tollgate_set_enum,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_tollgate_conf_t, log_level),
      &ngx_http_tollgate_log_levels },

    { ngx_string("tollgate_rules"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_TAKE12,
      ngx_http_tollgate_rules,
      NGX_HTTP_MAIN_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("tollgate_redis"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_1MORE,
      ngx_http_tollgate_redis,
      NGX_HTTP_MAIN_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("tollgate_policies"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE12,
      ngx_http_tollgate_policies,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("tollgate_metrics"),
      NGX_HTTP_LOC_CONF|NGX_CONF_NOARGS,
      ngx_http_tollgate_metrics,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

      ngx_null_command
};


static ngx_http_module_t  ngx_http_tollgate_module_ctx = {
    ngx_http_tollgate_add_variables,       /* preconfiguration */
    ngx_http_tollgate_init,                /* postconfiguration */

    ngx_http_tollgate_create_main_conf,    /* create main configuration */
    NULL,                                  /* init main configuration */

    NULL,                                  /* create server configuration */
    NULL,                                  /* merge server configuration */

    ngx_http_tollgate_create_conf,         /* create location configuration */
    ngx_http_tollgate_merge_conf           /* merge location configuration */
};


ngx_module_t  ngx_http_tollgate_module = {
    NGX_MODULE_V1,
    &ngx_http_tollgate_module_ctx,         /* module context */
    ngx_http_tollgate_commands,            /* module directives */
    NGX_HTTP_MODULE,                       /* module type */
    NULL,                                  /* init master */
    ngx_http_tollgate_init_module,         /* init module */
    ngx_http_tollgate_init_process,        /* init process */
    NULL,                                  /* init thread */
    NULL,                                  /* exit thread */
    ngx_http_tollgate_exit_process,        /* exit process */
    ngx_http_tollgate_exit_master,         /* exit master */
    NGX_MODULE_V1_PADDING
};


static ngx_int_t
ngx_http_tollgate_handler(ngx_http_request_t *r)
{
    ngx_int_t                   rc;
    ngx_http_tollgate_ctx_t    *ctx;
    ngx_http_tollgate_conf_t   *tlcf;
    ngx_http_variable_value_t  *place;

    tlcf = ngx_http_get_module_loc_conf(r, ngx_http_tollgate_module);

    if (tlcf->nlimits == 0 && tlcf->policies == NULL) {
        return NGX_DECLINED;
    }

    place = ngx_http_tollgate_ctx_place(r);

    if (place->data == NULL) {
        rc = ngx_http_tollgate_check(r, tlcf, &ctx);

        if (rc == NGX_AGAIN) {
            place->data = (u_char *) ctx;
            return NGX_AGAIN;
        }

    } else {
        ctx = (ngx_http_tollgate_ctx_t *) place->data;

        if (ctx->wait == NULL || ctx->wait->request != r) {
            return NGX_DECLINED;
        }

        if (ctx->wait->pending) {
            return NGX_AGAIN;
        }

        rc = ctx->wait->rc;
        ctx->wait = NULL;
        place->data = NULL;
    }

    if (rc != NGX_OK) {
        return rc;
    }

    place->data = (u_char *) ctx;

    if (ctx->decision.allowed && ctx->delay == 0) {

        if (ctx->status == 0) {
            ctx->status = NGX_HTTP_TOLLGATE_PASSED;
        }

        return NGX_DECLINED;
    }

    return ngx_http_tollgate_enforce(r, tlcf, ctx);
}


/* while a request waits for its decision there is none to be told */

ngx_http_tollgate_ctx_t *
ngx_http_tollgate_get_ctx(ngx_http_request_t *r)
{
    ngx_http_tollgate_ctx_t  *ctx;

    ctx = (ngx_http_tollgate_ctx_t *) ngx_http_tollgate_ctx_place(r)->data;

    return (ctx && ctx->wait == NULL) ? ctx : NULL;
}


static ngx_int_t
ngx_http_tollgate_enforce(ngx_http_request_t *r,
    ngx_http_tollgate_conf_t *tlcf, ngx_http_tollgate_ctx_t *ctx)
{
    if (!ctx->decision.allowed) {

        if (ctx->missing.len) {
            ngx_log_error(tlcf->log_level, r->connection->log, 0,
                          "refusing request%s without header \"%V\" by "
                          "policy \"%V\" of zone \"%V\"",
                          tlcf->dry_run ? ", dry run," : "",
                          &ctx->missing, &ctx->name, &ctx->zone->name);

        } else {
            ngx_log_error(tlcf->log_level, r->connection->log, 0,
                          "limiting requests%s by %s \"%V\" of zone \"%V\"",
                          tlcf->dry_run ? ", dry run," : "",
                          ctx->policy ? "policy" : "limit",
                          &ctx->name, &ctx->zone->name);
        }

        if (tlcf->dry_run) {
            ctx->status = NGX_HTTP_TOLLGATE_REJECTED_DRY_RUN;
            return NGX_DECLINED;
        }

        ctx->status = NGX_HTTP_TOLLGATE_REJECTED;

        return ngx_http_tollgate_deny(r, ctx, ctx->denial);
    }

    ngx_log_error(tlcf->delay_log_level, r->connection->log, 0,
                  "delaying request%s for %M ms by limit \"%V\" "
                  "of zone \"%V\"", tlcf->dry_run ? ", dry run," : "",
                  ctx->delay, &ctx->name, &ctx->zone->name);

    if (tlcf->dry_run) {
        ctx->status = NGX_HTTP_TOLLGATE_DELAYED_DRY_RUN;
        return NGX_DECLINED;
    }

    ctx->status = NGX_HTTP_TOLLGATE_DELAYED;

    return ngx_http_tollgate_wait(r, ctx->delay);
}


static ngx_int_t
ngx_http_tollgate_wait(ngx_http_request_t *r, ngx_msec_t delay)
{
    if (r->connection->read->ready) {
        ngx_post_event(r->connection->read, &ngx_posted_events);

    } else {
        if (ngx_handle_read_event(r->connection->read, 0) != NGX_OK) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }
    }

    r->read_event_handler = ngx_http_test_reading;
    r->write_event_handler = ngx_http_tollgate_delay;

    r->connection->write->delayed = 1;
    ngx_add_timer(r->connection->write, delay);

    return NGX_AGAIN;
}


static void
ngx_http_tollgate_delay(ngx_http_request_t *r)
{
    uint64_t                  now;
    ngx_event_t              *wev;
    ngx_http_tollgate_ctx_t  *ctx;

    ngx_log_debug0(NGX_LOG_DEBUG_HTTP, r->connection->log, 0,
                   "tollgate delay");

    wev = r->connection->write;

    if (wev->delayed) {

        if (ngx_handle_write_event(wev, 0) != NGX_OK) {
            ngx_http_finalize_request(r, NGX_HTTP_INTERNAL_SERVER_ERROR);
        }

        return;
    }

    /* a timer counts from the cached time, which may have been an old one */

    ctx = ngx_http_tollgate_get_ctx(r);
    now = ngx_http_tollgate_now();

    if (ctx && now < ctx->until) {
        wev->delayed = 1;
        ngx_add_timer(wev, ngx_http_tollgate_ms(ctx->until - now) + 1);
        return;
    }

    if (ngx_handle_read_event(r->connection->read, 0) != NGX_OK) {
        ngx_http_finalize_request(r, NGX_HTTP_INTERNAL_SERVER_ERROR);
        return;
    }

    r->read_event_handler = ngx_http_block_reading;
    r->write_event_handler = ngx_http_core_run_phases;

    ngx_http_core_run_phases(r);
}


/* as ngx_conf_set_enum_slot(), which does not tell what is legal */

static char *
ngx_http_tollgate_set_enum(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    u_char            list[128], *p;
    ngx_str_t        *value;
    ngx_uint_t        i;
    ngx_conf_enum_t  *e;

    value = cf->args->elts;
    e = cmd->post;
    p = list;

    for (i = 0; e[i].name.len != 0; i++) {

        if (e[i].name.len == value[1].len
            && ngx_strcasecmp(e[i].name.data, value[1].data) == 0)
        {
            return ngx_conf_set_enum_slot(cf, cmd, conf);
        }

        p = ngx_slprintf(p, list + sizeof(list), "%s%V", i ? ", " : "",
                         &e[i].name);
    }

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "invalid value \"%V\" of \"%V\": one of %*s",
                       &value[1], &cmd->name, (size_t) (p - list), list);

    return NGX_CONF_ERROR;
}


static void *
ngx_http_tollgate_create_main_conf(ngx_conf_t *cf)
{
    ngx_http_tollgate_main_conf_t  *tmcf;

    tmcf = ngx_pcalloc(cf->pool, sizeof(ngx_http_tollgate_main_conf_t));
    if (tmcf == NULL) {
        return NULL;
    }

    if (ngx_array_init(&tmcf->zones, cf->pool, 4, sizeof(void *)) != NGX_OK) {
        return NULL;
    }

    return tmcf;
}


static void *
ngx_http_tollgate_create_conf(ngx_conf_t *cf)
{
    ngx_http_tollgate_conf_t  *conf;

    conf = ngx_pcalloc(cf->pool, sizeof(ngx_http_tollgate_conf_t));
    if (conf == NULL) {
        return NULL;
    }

    /*
     * set by ngx_pcalloc():
     *
     *     conf->limits = NULL;
     *     conf->nlimits = 0;
     *     conf->nholds = 0;
     *     conf->set = 0;
     *     conf->policies = NULL;
     *     conf->route = { 0, NULL };
     *     conf->policies_set = 0;
     *     conf->merged = 0;
     */

    conf->fields = NGX_CONF_UNSET_UINT;
    conf->dry_run = NGX_CONF_UNSET;
    conf->log_level = NGX_CONF_UNSET_UINT;

    return conf;
}


static char *
ngx_http_tollgate_merge_conf(ngx_conf_t *cf, void *parent, void *child)
{
    ngx_http_tollgate_conf_t *prev = parent;
    ngx_http_tollgate_conf_t *conf = child;

    if (!conf->set) {
        conf->limits = prev->limits;
        conf->nlimits = prev->nlimits;
        conf->nholds = prev->nholds;
    }

    if (!conf->policies_set) {
        conf->policies = prev->policies;
        conf->route = prev->route;
    }

    /* what is written nowhere is left to the rules */

    conf->family = conf->fields;

    if (conf->family == NGX_CONF_UNSET_UINT) {
        conf->family = prev->merged ? prev->family : prev->fields;
    }

    conf->merged = 1;

    ngx_conf_merge_uint_value(conf->fields, prev->fields,
                              TOLLGATE_FIELDS_X_RATELIMIT);

    ngx_conf_merge_value(conf->dry_run, prev->dry_run, 0);

    ngx_conf_merge_uint_value(conf->log_level, prev->log_level, NGX_LOG_ERR);

    conf->delay_log_level = (conf->log_level == NGX_LOG_INFO) ?
                                NGX_LOG_INFO : conf->log_level + 1;

    return NGX_CONF_OK;
}


static ngx_int_t
ngx_http_tollgate_init(ngx_conf_t *cf)
{
    ngx_http_handler_pt        *h;
    ngx_http_core_main_conf_t  *cmcf;

    if (ngx_http_tollgate_check_zones(cf) != NGX_OK
        || ngx_http_tollgate_check_redis(cf) != NGX_OK
        || ngx_http_tollgate_check_rules(cf) != NGX_OK)
    {
        return NGX_ERROR;
    }

    cmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);

    h = ngx_array_push(&cmcf->phases[NGX_HTTP_PREACCESS_PHASE].handlers);
    if (h == NULL) {
        return NGX_ERROR;
    }

    *h = ngx_http_tollgate_handler;

    return ngx_http_tollgate_filter_init(cf);
}
