
/*
 * "tollgate_rules": the rules file, followed while nginx runs.
 *
 * The master compiles the file with its configuration, and its workers begin
 * with what it has.  Each worker then looks at the file from time to time,
 * compiles a changed one in a thread, and exchanges a pointer between two
 * requests.  A file that is refused is told about once, and the rules in
 * force stay.
 */


#include "ngx_http_tollgate.h"


/* between two looks at a thread's work, milliseconds */
#define NGX_HTTP_TOLLGATE_POLL  5

/* a log is no place for thousands of the same kind */
#define NGX_HTTP_TOLLGATE_MAX_NOTICES  16


static char *ngx_http_tollgate_first_rules(ngx_conf_t *cf,
    ngx_http_tollgate_rules_t *rules);
static void ngx_http_tollgate_forget_rules(void *data);
static void ngx_http_tollgate_follow(ngx_event_t *ev);
static ngx_http_tollgate_load_t *ngx_http_tollgate_look(
    ngx_http_tollgate_rules_t *rules);
static void ngx_http_tollgate_finish(ngx_http_tollgate_rules_t *rules,
    ngx_http_tollgate_load_t *load, ngx_log_t *log);
static void ngx_http_tollgate_notices(ngx_http_tollgate_rules_t *rules,
    tollgate_rules *compiled, ngx_log_t *log);
static void ngx_http_tollgate_refuse(ngx_uint_t level,
    ngx_http_tollgate_load_t *load, char *end, ngx_log_t *log);
static uint64_t ngx_http_tollgate_file_id(ngx_http_tollgate_file_t *file);


char *
ngx_http_tollgate_rules(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_tollgate_main_conf_t *tmcf = conf;

    ngx_int_t                   n;
    ngx_str_t                  *value, s;
    ngx_pool_cleanup_t         *cln;
    ngx_http_tollgate_rules_t  *rules;

    if (tmcf->rules) {
        return "is duplicate";
    }

    value = cf->args->elts;

    cln = ngx_pool_cleanup_add(cf->pool, sizeof(ngx_http_tollgate_rules_t));
    if (cln == NULL) {
        return NGX_CONF_ERROR;
    }

    rules = cln->data;
    ngx_memzero(rules, sizeof(ngx_http_tollgate_rules_t));

    cln->handler = ngx_http_tollgate_forget_rules;

    rules->path = value[1];
    rules->interval = 1000;
    rules->conf_file = cf->conf_file->file.name.data;
    rules->line = cf->conf_file->line;

    if (ngx_conf_full_name(cf->cycle, &rules->path, 1) != NGX_OK
        || ngx_array_init(&rules->zones, cf->pool, 2, sizeof(void *))
           != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    if (cf->args->nelts == 3) {

        s.data = value[2].data + 7;
        s.len = value[2].len - 7;

        n = (value[2].len > 7 && ngx_strncmp(value[2].data, "reload=", 7) == 0)
            ? ngx_parse_time(&s, 0) : NGX_ERROR;

        if (n == NGX_ERROR) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid parameter \"%V\"", &value[2]);
            return NGX_CONF_ERROR;
        }

        if (n < 10 || n > 86400000) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "\"%V\" must be between 10ms and 1d",
                               &value[2]);
            return NGX_CONF_ERROR;
        }

        rules->interval = n;
    }

    if (ngx_http_tollgate_seed(rules->seed, sizeof(rules->seed), cf->log)
        != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    tmcf->rules = rules;

    return ngx_http_tollgate_first_rules(cf, rules);
}


static char *
ngx_http_tollgate_first_rules(ngx_conf_t *cf, ngx_http_tollgate_rules_t *rules)
{
    char                       end[512];
    ngx_http_tollgate_load_t  *load;

    load = ngx_http_tollgate_create_load(rules);
    if (load == NULL) {
        return NGX_CONF_ERROR;
    }

    ngx_http_tollgate_read_rules(load);

    if (load->result != NGX_OK) {

        (void) ngx_snprintf((u_char *) end, sizeof(end) - 1, " in %s:%ui%Z",
                            rules->conf_file, rules->line);
        end[sizeof(end) - 1] = '\0';

        ngx_http_tollgate_refuse(NGX_LOG_EMERG, load, end, cf->log);
        ngx_http_tollgate_free_load(load);

        return NGX_CONF_ERROR;
    }

    rules->file = load->file;
    rules->compiled = load->compiled;

    load->compiled = NULL;
    ngx_http_tollgate_free_load(load);

    return NGX_CONF_OK;
}


/* the configuration goes, or the process */

static void
ngx_http_tollgate_forget_rules(void *data)
{
    ngx_http_tollgate_rules_t  *rules = data;

    if (rules->event.timer_set) {
        ngx_del_timer(&rules->event);
    }

    if (rules->load) {

        if (ngx_http_tollgate_load_done(rules->load)
            || ngx_http_tollgate_abandon_load() != NGX_OK)
        {
            /* the zones, which the thread reads, may go with the cycle */

            while (!ngx_http_tollgate_load_done(rules->load)) {
                ngx_msleep(1);
            }

            ngx_http_tollgate_free_load(rules->load);
        }

        rules->load = NULL;
    }

    tollgate_rules_free(rules->compiled);
    rules->compiled = NULL;

    ngx_http_tollgate_free_version(rules->version);
    rules->version = NULL;
}


/* all directives are read: in which zones are the rules asked? */

ngx_int_t
ngx_http_tollgate_check_rules(ngx_conf_t *cf)
{
    char                             message[512];
    ngx_uint_t                       i;
    ngx_http_tollgate_zone_t       **zones, **slot;
    ngx_http_tollgate_rules_t       *rules;
    ngx_http_tollgate_main_conf_t   *tmcf;

    tmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_tollgate_module);

    rules = tmcf->rules;
    zones = tmcf->zones.elts;

    for (i = 0; i < tmcf->zones.nelts; i++) {

        if (!zones[i]->policies) {
            continue;
        }

        if (rules == NULL) {
            ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                          "\"tollgate_policies\" needs \"tollgate_rules\" "
                          "in %s:%ui", zones[i]->used_file,
                          zones[i]->used_line);
            return NGX_ERROR;
        }

        zones[i]->rules = rules;
        zones[i]->place = rules->zones.nelts;

        slot = ngx_array_push(&rules->zones);
        if (slot == NULL) {
            return NGX_ERROR;
        }

        *slot = zones[i];
    }

    if (rules == NULL) {
        return NGX_OK;
    }

    if (tmcf->redis) {

        rules->redis = &tmcf->redis->config;

        message[0] = '\0';

        if (tollgate_redis_accepts(rules->redis, rules->compiled, message,
                                   sizeof(message))
            != TOLLGATE_OK)
        {
            ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                          "rules \"%V\" have a limit that cannot be counted "
                          "in Redis \"%V\": %s in %s:%ui", &rules->path,
                          &tmcf->redis->name, message, rules->conf_file,
                          rules->line);
            return NGX_ERROR;
        }
    }

    if (rules->zones.nelts == 0) {
        ngx_log_error(NGX_LOG_WARN, cf->log, 0,
                      "rules \"%V\" limit nothing: no location has "
                      "\"tollgate_policies\" in %s:%ui", &rules->path,
                      rules->conf_file, rules->line);
    }

    ngx_http_tollgate_notices(rules, rules->compiled, cf->log);

    if (ngx_http_tollgate_create_version(rules, rules->compiled, cf->log,
                                         &rules->version)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    rules->compiled = NULL;

    return NGX_OK;
}


/* the zone is there: does its table hold the rules, and their counters? */

ngx_int_t
ngx_http_tollgate_bind_rules(ngx_http_tollgate_zone_t *zone, ngx_log_t *log)
{
    char                              message[512];
    ngx_str_t                         name;
    tollgate_policy                   policy;
    ngx_http_tollgate_rules_t        *rules;
    ngx_http_tollgate_rules_state_t  *state;

    rules = zone->rules;

    if (rules == NULL) {
        return NGX_OK;
    }

    message[0] = '\0';

    if (tollgate_rules_accepts(rules->version->rules, &zone->table, message,
                               sizeof(message))
        != TOLLGATE_OK)
    {
        ngx_log_error(NGX_LOG_EMERG, log, 0,
                      "zone \"%V\" with rows=%uL row_entries=%uL cannot hold "
                      "the rules \"%V\": %s: \"tollgate_zone\" needs rows=, "
                      "one a key, and row_entries=, the largest such limit "
                      "in %s:%ui", &zone->name,
                      zone->rows, zone->row_entries, &rules->path, message,
                      rules->conf_file, rules->line);
        return NGX_ERROR;
    }

    if (ngx_http_tollgate_bind_version(rules->version, zone, 0, &policy)
        != NGX_OK)
    {
        name.data = (u_char *) policy.name;
        name.len = policy.name_len;

        ngx_log_error(NGX_LOG_EMERG, log, 0,
                      "zone \"%V\" has counters for %ui limits and policies, "
                      "none is left for policy \"%V\" in %s:%ui", &zone->name,
                      zone->sh->nentries, &name, rules->conf_file,
                      rules->line);
        return NGX_ERROR;
    }

    state = &zone->sh->rules;

    state->told = ngx_http_tollgate_file_id(&rules->file);
    state->refused = 0;
    state->failed = 0;
    state->loaded_at = ngx_time();

    return NGX_OK;
}


ngx_int_t
ngx_http_tollgate_init_process(ngx_cycle_t *cycle)
{
    ngx_http_tollgate_load_t       *load;
    ngx_http_tollgate_rules_t      *rules;
    ngx_http_tollgate_main_conf_t  *tmcf;

    if (ngx_process != NGX_PROCESS_WORKER && ngx_process != NGX_PROCESS_SINGLE)
    {
        return NGX_OK;
    }

    tmcf = ngx_http_cycle_get_module_main_conf(cycle,
                                               ngx_http_tollgate_module);

    if (tmcf == NULL || tmcf->rules == NULL || tmcf->rules->zones.nelts == 0) {
        return NGX_OK;
    }

    rules = tmcf->rules;

    /* a worker that takes a dead one's place: the file is newer than we are */

    load = ngx_http_tollgate_look(rules);

    if (load) {
        ngx_http_tollgate_read_rules(load);
        ngx_http_tollgate_finish(rules, load, cycle->log);
    }

    if (ngx_http_tollgate_start_engines(cycle, tmcf) != NGX_OK) {
        return NGX_ERROR;
    }

    rules->event.handler = ngx_http_tollgate_follow;
    rules->event.data = rules;
    rules->event.log = cycle->log;
    rules->event.cancelable = 1;

    /* workers do not all look, and compile, at the same instant */

    ngx_add_timer(&rules->event, 1 + ngx_random() % rules->interval);

    return NGX_OK;
}


static void
ngx_http_tollgate_follow(ngx_event_t *ev)
{
    ngx_http_tollgate_load_t   *load;
    ngx_http_tollgate_rules_t  *rules;

    rules = ev->data;

    if (rules->load) {

        if (!ngx_http_tollgate_load_done(rules->load)) {
            ngx_add_timer(ev, NGX_HTTP_TOLLGATE_POLL);
            return;
        }

        load = rules->load;
        rules->load = NULL;

        ngx_http_tollgate_finish(rules, load, ev->log);

    } else {

        load = ngx_http_tollgate_look(rules);

        if (load) {

            if (ngx_http_tollgate_start_load(load) == NGX_OK) {
                rules->load = load;
                ngx_add_timer(ev, NGX_HTTP_TOLLGATE_POLL);
                return;
            }

            /* no thread can be had: requests wait a little */

            ngx_http_tollgate_read_rules(load);
            ngx_http_tollgate_finish(rules, load, ev->log);
        }
    }

    ngx_add_timer(ev, rules->interval
                      - ngx_random() % (rules->interval / 8 + 1));
}


/* NULL: the file is what it was */

static ngx_http_tollgate_load_t *
ngx_http_tollgate_look(ngx_http_tollgate_rules_t *rules)
{
    ngx_uint_t                 same;
    ngx_file_info_t            fi;
    ngx_http_tollgate_file_t   file;
    ngx_http_tollgate_load_t  *load;

    if (ngx_file_info(rules->path.data, &fi) == NGX_FILE_ERROR) {

        if (rules->file.missing) {
            return NULL;
        }

        same = 0;

    } else {
        ngx_http_tollgate_stat(&fi, &file);

        same = !rules->file.missing
               && file.mtime == rules->file.mtime
               && file.inode == rules->file.inode
               && file.size == rules->file.size;

        if (same && !rules->file.fresh) {
            return NULL;
        }
    }

    load = ngx_http_tollgate_create_load(rules);

    if (load) {
        load->check_known = same;
        load->accept = 1;
    }

    return load;
}


static void
ngx_http_tollgate_finish(ngx_http_tollgate_rules_t *rules,
    ngx_http_tollgate_load_t *load, ngx_log_t *log)
{
    uint64_t                          id, was;
    ngx_uint_t                        i;
    tollgate_policy                   policy;
    ngx_http_tollgate_zone_t        **zones;
    ngx_http_tollgate_version_t      *version;
    ngx_http_tollgate_rules_state_t  *state;

    rules->file = load->file;

    if (load->result == NGX_DECLINED) {
        ngx_http_tollgate_free_load(load);
        return;
    }

    zones = rules->zones.elts;
    state = &zones[0]->sh->rules;
    id = ngx_http_tollgate_file_id(&load->file);
    version = NULL;

    if (load->result == NGX_OK) {

        if (ngx_http_tollgate_create_version(rules, load->compiled, log,
                                             &version)
            == NGX_OK)
        {
            load->compiled = NULL;

        } else {
            load->what = "finds no memory";
        }
    }

    for (i = 0; version && i < rules->zones.nelts; i++) {

        if (ngx_http_tollgate_bind_version(version, zones[i], 1, &policy)
            == NGX_OK)
        {
            continue;
        }

        (void) ngx_snprintf((u_char *) load->message,
                            sizeof(load->message) - 1,
                            "zone %V has counters for %ui limits and policies,"
                            " none is left for %*s%Z", &zones[i]->name,
                            zones[i]->sh->nentries, policy.name_len,
                            policy.name);

        load->what = "has too many policies";

        ngx_http_tollgate_free_version(version);
        version = NULL;
    }

    if (version) {

        /* requests between their question and their answer keep it */

        ngx_http_tollgate_free_version(rules->version);
        rules->version = version;

        state->refused = 0;
        state->failed = 0;
        state->loaded_at = ngx_time();

        was = state->told;

        if (was != id && ngx_atomic_cmp_set(&state->told, was, id)) {
            ngx_log_error(NGX_LOG_NOTICE, log, 0,
                          "rules \"%V\" are in force: %ui policies, "
                          "%uL overrides", &rules->path, version->npolicies,
                          version->overrides);

            ngx_http_tollgate_notices(rules, version->rules, log);
        }

    } else {

        state->failed = 1;
        state->failed_at = ngx_time();

        was = state->refused;

        if (was != id && ngx_atomic_cmp_set(&state->refused, was, id)) {
            ngx_http_tollgate_refuse(NGX_LOG_ERR, load,
                                     ", the rules in force stay", log);
        }
    }

    ngx_http_tollgate_free_load(load);
}


/* what the document asks for and does not get */

static void
ngx_http_tollgate_notices(ngx_http_tollgate_rules_t *rules,
    tollgate_rules *compiled, ngx_log_t *log)
{
    char             notice[TOLLGATE_NOTICE_SIZE];
    size_t           len;
    ngx_uint_t       i;
    tollgate_policy  policy;

    if (rules->redis) {

        for (i = 0;
             tollgate_rules_policy(compiled, i, &policy) == TOLLGATE_OK;
             i++)
        {
            if (policy.shared) {
                break;
            }
        }

        if (tollgate_rules_policy(compiled, i, &policy) != TOLLGATE_OK) {
            ngx_log_error(NGX_LOG_WARN, log, 0,
                          "rules \"%V\": \"tollgate_redis\" counts nothing, "
                          "as no policy has \"store\": \"redis\"",
                          &rules->path);
        }
    }

    for (i = 0;
         tollgate_rules_notice(compiled, rules->redis != NULL, i, notice,
                               sizeof(notice), &len)
         == TOLLGATE_OK;
         i++)
    {
        if (i == NGX_HTTP_TOLLGATE_MAX_NOTICES) {
            ngx_log_error(NGX_LOG_WARN, log, 0,
                          "rules \"%V\": and more; \"tollgate rules check\" "
                          "tells them all", &rules->path);
            break;
        }

        ngx_log_error(NGX_LOG_WARN, log, 0, "rules \"%V\": %*s",
                      &rules->path, len, notice);
    }
}


/* what is wrong, and every reason in a line of its own */

static void
ngx_http_tollgate_refuse(ngx_uint_t level, ngx_http_tollgate_load_t *load,
    char *end, ngx_log_t *log)
{
    char  *line, *next;

    ngx_log_error(level, log, load->err, "rules \"%V\": the file %s%s",
                  &load->path, load->what, end);

    for (line = load->message; *line; line = next) {

        next = strchr(line, '\n');

        if (next) {
            *next++ = '\0';

        } else {
            next = line + ngx_strlen(line);
        }

        ngx_log_error(level, log, 0, "rules \"%V\": %s", &load->path,
                      line);
    }
}


/* tells the states of the file apart; never 0, and 1 for a missing one */

static uint64_t
ngx_http_tollgate_file_id(ngx_http_tollgate_file_t *file)
{
    uint64_t  id;

    if (file->missing) {
        return 1;
    }

    id = file->mtime * 0x9e3779b97f4a7c15;
    id = (id ^ file->inode) * 0x9e3779b97f4a7c15;
    id = (id ^ file->size) * 0x9e3779b97f4a7c15;
    id ^= file->crc32;

    return id | 2;
}
