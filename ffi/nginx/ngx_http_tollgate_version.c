
/*
 * One compiled rules file: what the request path needs of it, ready at hand,
 * and its policies' counters in each zone, which are found by name and
 * outlive it.
 */


#include "ngx_http_tollgate.h"


static void ngx_http_tollgate_entry_name(tollgate_policy *policy, u_char *buf,
    ngx_str_t *name);
static ngx_http_tollgate_entry_t *ngx_http_tollgate_spare_entry(
    ngx_http_tollgate_version_t *version, ngx_http_tollgate_shctx_t *sh,
    ngx_str_t *name);


ngx_int_t
ngx_http_tollgate_create_version(ngx_http_tollgate_rules_t *rules,
    tollgate_rules *compiled, ngx_log_t *log,
    ngx_http_tollgate_version_t **versionp)
{
    size_t                        n, len;
    ngx_uint_t                    i;
    const char                   *name;
    tollgate_policy               policy;
    ngx_http_tollgate_version_t  *version;

    version = ngx_calloc(sizeof(ngx_http_tollgate_version_t), log);
    if (version == NULL) {
        return NGX_ERROR;
    }

    if (tollgate_rules_policy_count(compiled, &n) != TOLLGATE_OK
        || tollgate_rules_fields(compiled, &version->fields) != TOLLGATE_OK)
    {
        goto failed;
    }

    version->npolicies = n;

    for (i = 0; i < version->npolicies; i++) {

        if (tollgate_rules_policy(compiled, i, &policy) != TOLLGATE_OK) {
            goto failed;
        }

        version->overrides += policy.overrides;
    }

    if (tollgate_rules_header_count(compiled, &n) != TOLLGATE_OK) {
        goto failed;
    }

    version->nheaders = n;

    for (i = 0; i < version->nheaders; i++) {

        if (tollgate_rules_header(compiled, i, &name, &len) != TOLLGATE_OK) {
            goto failed;
        }

        version->headers[i].data = (u_char *) name;
        version->headers[i].len = len;
        version->lengths |= (uint64_t) 1 << (len & 63);
    }

    n = rules->zones.nelts * version->npolicies + 1;

    version->counters = ngx_calloc(n * sizeof(tollgate_counters *), log);
    if (version->counters == NULL) {
        goto failed;
    }

    /* from here on the rules go when the version goes */

    version->rules = compiled;
    *versionp = version;

    return NGX_OK;

failed:

    ngx_free(version);

    return NGX_ERROR;
}


/* when no request waits for its answer any more; see ..._await() */

void
ngx_http_tollgate_free_version(ngx_http_tollgate_version_t *version)
{
    if (version) {

        version->unused = 1;

        if (version->waits) {
            return;
        }

        tollgate_rules_free(version->rules);
        ngx_free(version->counters);
        ngx_free(version);
    }
}


/* on an error "policy" is the one that finds no counters */

ngx_int_t
ngx_http_tollgate_bind_version(ngx_http_tollgate_version_t *version,
    ngx_http_tollgate_zone_t *zone, ngx_uint_t live, tollgate_policy *policy)
{
    u_char                       buf[NGX_HTTP_TOLLGATE_MAX_NAME];
    ngx_int_t                    rc;
    ngx_str_t                    name;
    ngx_uint_t                   i;
    tollgate_counters          **counters;
    ngx_http_tollgate_entry_t   *entry;

    rc = NGX_OK;
    counters = version->counters + zone->place * version->npolicies;

    ngx_shmtx_lock(&zone->shpool->mutex);

    for (i = 0; i < version->npolicies; i++) {

        if (tollgate_rules_policy(version->rules, i, policy) != TOLLGATE_OK) {
            rc = NGX_ERROR;
            break;
        }

        ngx_http_tollgate_entry_name(policy, buf, &name);

        entry = ngx_http_tollgate_entry(zone->sh, &name,
                                        NGX_HTTP_TOLLGATE_POLICY);

        if (entry == NULL && live) {
            entry = ngx_http_tollgate_spare_entry(version, zone->sh, &name);
        }

        if (entry == NULL) {
            rc = NGX_ERROR;
            break;
        }

        counters[i] = &entry->counters;
    }

    ngx_shmtx_unlock(&zone->shpool->mutex);

    return rc;
}


/* a longer name is cut, and its hash makes it another's */

static void
ngx_http_tollgate_entry_name(tollgate_policy *policy, u_char *buf,
    ngx_str_t *name)
{
    size_t    i;
    u_char   *p;
    uint64_t  hash;

    if (policy->name_len <= NGX_HTTP_TOLLGATE_MAX_NAME) {
        name->data = (u_char *) policy->name;
        name->len = policy->name_len;
        return;
    }

    /* FNV-1a */

    hash = 0xcbf29ce484222325;

    for (i = 0; i < policy->name_len; i++) {
        hash = (hash ^ (u_char) policy->name[i]) * 0x100000001b3;
    }

    p = ngx_cpymem(buf, policy->name, NGX_HTTP_TOLLGATE_MAX_NAME - 17);
    p = ngx_sprintf(p, "~%016xL", hash);

    name->data = buf;
    name->len = p - buf;
}


/* all places are taken: one of a policy that the rules no longer have */

static ngx_http_tollgate_entry_t *
ngx_http_tollgate_spare_entry(ngx_http_tollgate_version_t *version,
    ngx_http_tollgate_shctx_t *sh, ngx_str_t *name)
{
    u_char                      buf[NGX_HTTP_TOLLGATE_MAX_NAME];
    ngx_str_t                   used;
    ngx_uint_t                  i, k;
    tollgate_policy             policy;
    ngx_http_tollgate_entry_t  *entry;

    for (i = 0; i < sh->nentries; i++) {

        entry = &sh->entries[i];

        if (!(entry->len & NGX_HTTP_TOLLGATE_POLICY)) {
            continue;
        }

        for (k = 0; k < version->npolicies; k++) {

            if (tollgate_rules_policy(version->rules, k, &policy)
                != TOLLGATE_OK)
            {
                return NULL;
            }

            ngx_http_tollgate_entry_name(&policy, buf, &used);

            if (entry->len == (used.len | NGX_HTTP_TOLLGATE_POLICY)
                && ngx_memcmp(entry->name, used.data, used.len) == 0)
            {
                break;
            }
        }

        if (k == version->npolicies) {
            ngx_memzero(entry, sizeof(ngx_http_tollgate_entry_t));

            entry->len = (u_char) (name->len | NGX_HTTP_TOLLGATE_POLICY);
            ngx_memcpy(entry->name, name->data, name->len);
            entry->generation = sh->generation;

            return entry;
        }
    }

    return NULL;
}
