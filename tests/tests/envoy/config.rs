//! A configuration that is wrong is refused, and says where and why.

use tollgate_tests::envoy::Setup;

use super::support::by_user;

#[test]
fn a_bad_configuration_is_refused_with_its_place_and_reason() {
    let refused = |plugin: &str| Setup::new(plugin).refused();
    let log = refused("");
    assert!(log.contains("tollgate: there is no configuration"), "{log}");
    let log = refused("{ \"rules\": { } ");
    assert!(
        log.contains("tollgate: configuration: EOF while parsing an object at line 1 column 15"),
        "{log}"
    );
    let log = refused(
        "{\n  \"rules\": { \"policies\": [\n { \"name\": \"a\", \"key\": [\"global\"],\n   \"limits\": [ { \"rate\": \"10/fortnight\" } ] } ] } }",
    );
    assert!(log.contains("tollgate: line 4, column 26: rules.policies[0].limits[0].rate: "), "{log}");
    let log = refused("{ \"rules\": { \"policys\": [] } }");
    assert!(log.contains("tollgate: line 1, column 25: rules.policys: unknown field"), "{log}");
    let log = refused("{ \"rules\": { \"policies\": [] }, \"embedded\": { \"pages\": 0 } }");
    assert!(log.contains("tollgate: embedded.pages: 0 is outside 1 to 65536"), "{log}");
    let log = refused(&by_user(r#"{ "algorithm": "sliding_log", "rate": "5000/m" }"#));
    assert!(log.contains("policy \"all\": limit: 5000 is above 1024"), "{log}");
}
