//! The chain of addresses that proxies leave: whatever the client put into it,
//! the address that the trusted proxy appended is the client's.
#![no_main]

use std::net::IpAddr;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tollgate_core::key::Seed;
use tollgate_core::policy::{Attributes, Rules};

static RULES: LazyLock<[Rules; 2]> = LazyLock::new(|| {
    ["x-forwarded-for", "forwarded"].map(|header| {
        let document = format!(
            r#"{{ "identity": {{ "ip": {{ "trusted_proxies": ["10.0.0.0/8", "2001:db8:ffff::/48"], "header": "{header}" }} }},
                 "default": {{ "key": ["ip"], "limits": [ {{ "rate": "1/s" }} ] }} }}"#
        );
        Rules::parse(&document, Seed([1, 2])).expect("it is legal")
    })
});

const PROXY: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

fn client(rules: &Rules, peer: IpAddr, chain: &[u8]) -> IpAddr {
    let headers = [Some(chain)];
    let request =
        Attributes { route: b"", method: b"", host: b"", path: b"", peer: Some(peer), headers: &headers };
    rules.client(&request).expect("there is a peer")
}

fuzz_target!(|data: &[u8]| {
    let [list, forwarded] = &*RULES;
    for rules in [list, forwarded] {
        let told = client(rules, PROXY, data);
        assert_eq!(told, told.to_canonical());
        assert_eq!(client(rules, CLIENT, data), CLIENT, "a peer that is not trusted is the client");
    }
    // A proxy that we trust appends whom it saw.
    assert_eq!(client(list, PROXY, &[data, b", 192.0.2.1"].concat()), CLIENT);
    assert_eq!(client(list, PROXY, &[data, b",192.0.2.1:1234, 10.7.7.7"].concat()), CLIENT);
    assert_eq!(client(forwarded, PROXY, &[data, b", for=192.0.2.1"].concat()), CLIENT);
    assert_eq!(
        client(forwarded, PROXY, &[data, b",For=\"192.0.2.1:80\";proto=http, for=10.7.7.7"].concat()),
        CLIENT
    );
    // And repeats the client's words as a quoted string.
    if data.len() <= 400 {
        let mut quoted = vec![b'"'];
        for &byte in data {
            if matches!(byte, b'"' | b'\\') {
                quoted.push(b'\\');
            }
            quoted.push(byte);
        }
        quoted.push(b'"');
        let before = [b"for=6.6.6.6, host=", &quoted[..], b";for=192.0.2.1"].concat();
        let behind = [b"for=6.6.6.6, for=192.0.2.1;host=", &quoted[..]].concat();
        assert_eq!(client(forwarded, PROXY, &before), CLIENT);
        assert_eq!(client(forwarded, PROXY, &behind), CLIENT);
    }
});
