//! `tollgate rules check` and `rules explain`.

use std::process::Stdio;

use crate::common::{command, file, rules, tollgate, tollgate_with};

const RULES: &str = r#"{
  "identity": {
    "api_key": { "header": "x-api-key", "required": true },
    "user":    { "header": "x-user-id" },
    "ip":      { "trusted_proxies": ["10.0.0.0/8"], "header": "x-forwarded-for" }
  },
  "policies": [
    { "name": "orders", "match": { "route": "create-order", "method": "POST" }, "key": ["api_key"],
      "limits": [ { "rate": "100/s", "burst": 200 } ], "cost": 3, "lease": { "max": 5 },
      "overrides": [ { "key": ["shop-a"], "limits": [ { "rate": "500/s", "burst": 1000 } ] } ] },
    { "name": "net", "key": ["ip"], "limits": [ { "rate": "50/s" } ], "dry_run": true },
    { "name": "login", "match": { "path": "/login" }, "key": ["user", "ip"],
      "limits": [ { "rate": "5/m" } ], "penalty": {} }
  ],
  "default": { "limits": [ { "rate": "10/s" } ] }
}"#;

const WRONG: &str = "{\n  \"policies\": [\n    { \"name\": \"a b\", \"limits\": [ { \"rate\": \"10/q\" } ] }\n  ],\n  \"color\": 1\n}";

#[test]
fn right_rules_are_right() {
    let run = tollgate(&["rules", "check", &rules(RULES)]);
    assert_eq!(run.code, 0);
    assert!(run.stdout.starts_with("ok: ") && !run.stdout.contains('\x1b'), "{}", run.stdout);
    let quiet = tollgate(&[
        "rules",
        "check",
        &rules(&RULES.replace("\"lease\": { \"max\": 5 }", "\"store\": \"redis\"")),
    ]);
    assert_eq!((quiet.code, quiet.stderr.as_str()), (0, ""));
}

#[test]
fn settings_without_effect_are_told() {
    const TOLD: &str = "lease has no effect with store local";
    let path = rules(RULES);
    let run = tollgate(&["rules", "check", &path]);
    assert_eq!((run.code, run.stderr), (0, format!("warning: {path}: policy orders: {TOLD}\n")));
    let run = tollgate(&["rules", "check", &path, "--format", "json"]);
    assert_eq!((run.code, run.stderr.as_str()), (0, ""));
    assert_eq!(run.json()[0]["warnings"], serde_json::json!([format!("policy orders: {TOLD}")]));
    let args = ["rules", "explain", &path, "--method", "POST", "--route", "create-order"];
    let args = [&args[..], &["--header", "x-api-key: shop-a"]].concat();
    assert!(tollgate(&args).stdout.contains(&format!("store  local\n  but    {TOLD}\n")));
    let told = tollgate(&[&args[..], &["--format", "json"]].concat()).json();
    assert_eq!(told["policies"][0]["warnings"], serde_json::json!([TOLD]));
}

#[test]
fn how_the_store_is_asked_is_explained() {
    let text = RULES.replace(
        "\"lease\": { \"max\": 5 },",
        "\"store\": \"redis\", \"timeout\": \"500us\", \"lease\": { \"max\": 5 }, \"shards\": 4,",
    );
    let args = ["rules", "explain", &rules(&text), "--method", "POST", "--route", "create-order"];
    let args = [&args[..], &["--header", "x-api-key: shop-a"]].concat();
    let asked = "timeout 500us, on_store_error local, lease of up to 5 for 1s, 4 shards";
    assert!(tollgate(&args).stdout.contains(&format!("store  redis, {asked}\n")));
    let told = tollgate(&[&args[..], &["--format", "json"]].concat()).json();
    assert_eq!(told["policies"][0]["asked"], asked);
}

#[test]
fn all_errors_are_told_at_once_as_editors_read_them() {
    let path = rules(WRONG);
    let run = tollgate(&["rules", "check", &path]);
    assert_eq!(run.code, 1);
    let lines: Vec<_> = run.stdout.lines().collect();
    assert_eq!(lines.len(), 3, "{}", run.stdout);
    assert!(
        lines[0].starts_with(&format!("{path}:3:15: policies[0].name: expected 1 to 64 of")),
        "{}",
        lines[0]
    );
    assert!(
        lines[1]
            .starts_with(&format!("{path}:3:44: policies[0].limits[0].rate: limit text: expected a unit"))
    );
    assert!(lines[2].starts_with(&format!("{path}:5:12: color: unknown field")));
}

#[test]
fn what_is_no_json_has_its_place_too() {
    let run = tollgate_with(&["rules", "check", "-"], b"{\n  \"policies\": [,]\n}");
    assert_eq!(run.code, 1);
    assert!(run.stdout.starts_with("<stdin>:2:16: not JSON: "), "{}", run.stdout);
}

#[test]
fn errors_as_json() {
    let (right, wrong) = (rules(RULES), rules(WRONG));
    let run = tollgate(&["rules", "check", &right, &wrong, "--format", "json"]);
    assert_eq!(run.code, 1);
    let told: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(told[0]["ok"], true);
    assert_eq!(told[1]["file"], wrong.as_str());
    assert_eq!(told[1]["errors"][2]["path"], "color");
    assert_eq!(told[1]["errors"][2]["line"], 5);
    assert_eq!(told[1]["errors"].as_array().unwrap().len(), 3);
}

#[test]
fn what_cannot_be_read_says_what_to_do() {
    let latin = file("latin.json", b"{\n\"caf\xE9\": 1}").to_str().unwrap().to_owned();
    let folder = std::env::temp_dir().to_str().unwrap().to_owned();
    for (path, expected) in [
        (
            "/no/such/file.json",
            "cannot read /no/such/file.json: No such file or directory (os error 2); check the path",
        ),
        (latin.as_str(), "byte 6 (line 2) is not UTF-8; save the file as UTF-8"),
        (folder.as_str(), "name a file in it"),
    ] {
        let run = tollgate(&["rules", "check", path]);
        assert_eq!(run.code, 2, "{path}");
        assert!(run.stderr.contains(expected), "{}", run.stderr);
        // Others are still checked, and the worst code stands.
        let run = tollgate(&["rules", "check", path, &rules(WRONG)]);
        assert_eq!((run.code, run.stdout.lines().count()), (2, 3));
    }
}

#[test]
fn wrong_arguments_are_code_2() {
    for args in [
        &["rules", "check"][..],
        &["rules"],
        &[],
        &["rules", "explain"],
        &["nonsense"],
        &["rules", "check", "x", "--format", "xml"],
    ] {
        let run = tollgate(args);
        assert_eq!((run.code, run.stdout.as_str()), (2, ""), "{args:?}");
        assert!(run.stderr.contains("Usage: ") || run.stderr.contains("--help"), "{}", run.stderr);
    }
    let run = tollgate(&["rules", "explain", &rules(RULES), "--header", "x-api-key"]);
    assert!(run.code == 2 && run.stderr.contains("write it as 'name: value'"), "{}", run.stderr);
}

#[test]
fn hostile_documents_do_not_reach_the_terminal() {
    let run = tollgate_with(
        &["rules", "check", "-"],
        "{ \"\u{1b}[2J\u{7}\u{202e}x\": 1, \"policies\": [ { \"name\": \"\\u001b[31m\", \"limits\": \"\\u0000\" } ] }".as_bytes(),
    );
    assert_eq!(run.code, 1);
    run.assert_harmless();
    let run = tollgate_with(&["rules", "check", "-"], b"{ \"\\u001b[2J\\u202e\": 1 }");
    assert!(run.stdout.contains(r"\u{1b}[2J\u{202e}: unknown field"), "{}", run.stdout);
    run.assert_harmless();
    for path in ["/no/\x1b[2Jsuch", "\n\r\x07"] {
        let run = tollgate(&["rules", "check", path]);
        assert_eq!(run.code, 2);
        run.assert_harmless();
    }
}

#[test]
fn every_policy_is_explained() {
    let rules = rules(RULES);
    let run = tollgate(&[
        "rules",
        "explain",
        &rules,
        "--method",
        "POST",
        "--path",
        "/orders?x=1",
        "--route",
        "create-order",
        "--header",
        "X-API-Key: shop-a",
        "--header",
        "x-forwarded-for: 1.1.1.1, 203.0.113.9",
        "--peer",
        "10.0.0.1",
        "--format",
        "json",
    ]);
    let told = run.json();
    assert_eq!(told["client"], "203.0.113.9");
    let policies = &told["policies"];
    assert_eq!(policies[0]["applies"], true);
    assert_eq!(policies[0]["key"][0]["value"], "sha256:5402d129", "the digest of shop-a begins so");
    assert_eq!(policies[0]["limits"][0], "500/s burst 1000");
    assert_eq!(policies[0]["overridden"], true);
    assert_eq!(policies[0]["cost"], 3);
    assert_eq!(policies[0]["store"], "local");
    assert_eq!(policies[1]["key"][0]["value"], "203.0.113.9");
    assert_eq!(policies[1]["dry_run"], true);
    assert_eq!(policies[2]["why_not"][0], "the path is /orders; it is for /login");
    assert_eq!(policies[3]["why_not"][0], "it is the default, and another policy applies");
    assert!(!run.stdout.contains("shop-a"), "no credential is told");
}

#[test]
fn every_condition_that_fails_is_named() {
    let rules = rules(
        r#"{ "policies": [ { "name": "p", "limits": [ { "rate": "1/s" } ], "match": { "route": "r", "method": ["PUT", "POST"],
             "host": "h", "path": "/a/*", "header": { "x-a": true, "x-b": "secret" } } } ] }"#,
    );
    let run =
        tollgate(&["rules", "explain", &rules, "--host", "other", "--path", "/b", "--header", "x-b: no"]);
    for expected in [
        "the route is not told; it is for r",
        "the method is GET; it is for PUT, POST",
        "the host is other; it is for h",
        "the path is /b; it is for /a/*",
        "there is no header field x-a",
        "the header field x-b is not what it asks for",
        "No policy applies: the request is not limited.",
    ] {
        assert!(run.stdout.contains(expected), "{expected}: {}", run.stdout);
    }
    assert!(!run.stdout.contains("secret"));
}

#[test]
fn a_missing_identity_is_told() {
    let rules = rules(RULES);
    let args = ["rules", "explain", &rules, "--method", "POST", "--route", "create-order"];
    let run = tollgate(&args);
    assert_eq!(run.code, 0);
    let expected = "refused with 401: policy orders needs the header field x-api-key";
    assert!(run.stdout.contains(expected), "{}", run.stdout);
    let told = tollgate(&[&args[..], &["--format", "json"]].concat()).json();
    assert_eq!(
        (&told["status"], &told["policies"][0]["missing_identity"]),
        (&401.into(), &"x-api-key".into())
    );
}

#[test]
fn hostile_arguments_are_shown_escaped() {
    let rules = rules(
        r#"{ "policies": [ { "name": "p", "key": ["path", "route"], "limits": [ { "rate": "1/s" } ] } ] }"#,
    );
    let run = tollgate(&[
        "rules",
        "explain",
        &rules,
        "--path",
        "/\x1b]0;owned\x07",
        "--route",
        "\r\n\u{9b}31m",
        "--header",
        "\x1b: x",
    ]);
    assert_eq!(run.code, 0);
    assert!(run.stdout.contains(r"/\u{1b}]0;owned\u{7}"), "{}", run.stdout);
    run.assert_harmless();
}

#[test]
fn wrong_rules_stop_an_explanation() {
    let run = tollgate(&["rules", "explain", &rules(WRONG)]);
    assert_eq!((run.code, run.stdout.as_str()), (1, ""));
    assert!(run.stderr.contains(":5:12: color: unknown field"), "{}", run.stderr);
}

#[test]
fn a_reader_who_leaves_does_not_change_the_verdict() {
    for (document, code) in
        [(&*RULES.replace("\"lease\": { \"max\": 5 }", "\"store\": \"redis\""), 0), (WRONG, 1)]
    {
        let path = rules(document);
        let mut child = command()
            .args(["rules", "check", &path])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!((output.status.code(), output.stderr.len()), (Some(code), 0));
    }
}

/// As a gateway would take it.
#[test]
fn a_path_is_explained_as_gateways_match_it() {
    let rules = rules(
        r#"{ "policies": [ { "name": "login", "match": { "path": "/login" }, "key": ["global"],
                             "limits": [ { "rate": "3/m" } ] } ] }"#,
    );
    for path in ["/login", "/x/..//%6cogin?next=/", "//login"] {
        let told = tollgate(&["rules", "explain", &rules, "--path", path, "--format", "json"]).json();
        assert_eq!(told["policies"][0]["applies"], true, "{path}: {told}");
    }
}
