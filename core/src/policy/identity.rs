//! Who a request comes from.
//!
//! A client's address is the peer's, unless the peer is a proxy that the rules
//! trust: then it is the rightmost address of the chain that such proxies have
//! left which is not itself a trusted proxy. A chain that is too short, or
//! that cannot be read, means the last address that was told by somebody who
//! is trusted. An IPv4 address written as IPv6 is the IPv4 address; of an IPv6
//! address only the network counts, since a client has all of one.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::model::{AddressRules, Forwarding, Network};

/// Addresses of a chain that are looked at, from the right.
const MAX_HOPS: usize = 32;
/// A longer element of a chain cannot be read.
const MAX_ELEMENT: usize = 1024;

/// Reads an address or a network; bits beyond the prefix are dropped.
pub(super) fn parse_network(text: &str) -> Option<Network> {
    let (address, prefix) = match text.split_once('/') {
        Some((address, prefix)) if prefix.bytes().all(|digit| digit.is_ascii_digit()) => {
            (address, Some(prefix.parse::<u8>().ok().filter(|_| prefix.len() <= 3)?))
        }
        Some(_) => return None,
        None => (text, None),
    };
    let written: IpAddr = address.parse().ok()?;
    let (address, longest, shift) = match canonical(written) {
        address @ IpAddr::V4(_) if written.is_ipv6() => (address, 128, 96),
        address @ IpAddr::V4(_) => (address, 32, 0),
        address => (address, 128, 0),
    };
    let prefix = prefix.unwrap_or(longest);
    if prefix > longest || prefix < shift {
        return None;
    }
    let prefix = prefix - shift;
    Some(Network { address: masked(address, prefix), prefix })
}

impl Network {
    /// Is it what one client is counted by?
    pub(super) fn is_one(&self, rules: &AddressRules) -> bool {
        match self.address {
            IpAddr::V4(_) => self.prefix == 32,
            IpAddr::V6(_) => self.prefix == 128 || self.prefix == rules.ipv6_prefix,
        }
    }

    /// Is the address one of this network?
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.address.is_ipv4() && masked(address, self.prefix) == self.address
    }
}

impl AddressRules {
    /// The client's address, and the prefix of it that counts. `peer` is who
    /// opened the connection, `chain` the header field that proxies leave.
    pub(super) fn client(&self, peer: IpAddr, chain: Option<&[u8]>) -> IpAddr {
        let mut client = canonical(peer);
        let Some((_, syntax)) = self.header else { return client };
        let Some(chain) = chain else { return client };
        let mut rest = Some(chain);
        for _ in 0..MAX_HOPS {
            let Some((left, hop)) = rest.and_then(|chain| last_hop(chain, syntax)) else { return client };
            if !self.trusts(client) {
                return client;
            }
            let address = match syntax {
                Forwarding::List => parse_hop(hop),
                Forwarding::Forwarded => forwarded_for(hop).and_then(parse_hop),
            };
            let Some(address) = address else { return client };
            (client, rest) = (address, left);
        }
        client
    }

    /// The address as it is counted: of IPv6 only the network.
    pub(super) fn counted(&self, address: IpAddr) -> IpAddr {
        match address {
            IpAddr::V6(_) => masked(address, self.ipv6_prefix),
            address => address,
        }
    }

    fn trusts(&self, address: IpAddr) -> bool {
        self.trusted.iter().any(|network| network.contains(address))
    }
}

/// IPv4-mapped IPv6 addresses are the IPv4 addresses that they carry.
fn canonical(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

fn masked(address: IpAddr, prefix: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32u32.saturating_sub(prefix.into())).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from_bits(v4.to_bits() & mask))
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128u32.saturating_sub(prefix.into())).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & mask))
        }
    }
}

/// The last element of a chain and what stands before it.
///
/// It is found from the right, since what is on the left may be the client's
/// own words: an unbalanced quotation mark there spoils nothing that a trusted
/// proxy appended. A comma within quotation marks, where a proxy repeats the
/// client's words (`host="a, for=192.0.2.1"`), parts nothing.
fn last_hop(chain: &[u8], syntax: Forwarding) -> Option<(Option<&[u8]>, &[u8])> {
    let mut quoted = false;
    for at in (0..chain.len()).rev().take(MAX_ELEMENT) {
        let before = chain.get(..at)?;
        match chain.get(at) {
            Some(b'"') if syntax == Forwarding::Forwarded => quoted ^= !is_escaped(before),
            Some(b',') if !quoted => return Some((Some(before), chain.get(at + 1..)?)),
            _ => {}
        }
    }
    (chain.len() <= MAX_ELEMENT).then_some((None, chain))
}

/// Does an odd number of backslashes stand at the end?
fn is_escaped(before: &[u8]) -> bool {
    before.iter().rev().take(MAX_ELEMENT).take_while(|&&byte| byte == b'\\').count() % 2 == 1
}

/// One address of a chain: plain, in brackets, or with a port.
fn parse_hop(hop: &[u8]) -> Option<IpAddr> {
    let text = core::str::from_utf8(hop).ok()?.trim_matches([' ', '\t']);
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(canonical(address));
    }
    let address = match text.strip_prefix('[') {
        Some(rest) => {
            let (address, port) = rest.split_once(']')?;
            if !port.is_empty() && !port.strip_prefix(':').is_some_and(is_port) {
                return None;
            }
            IpAddr::V6(address.parse().ok()?)
        }
        None => {
            let (address, port) = text.split_once(':')?;
            if !is_port(port) {
                return None;
            }
            IpAddr::V4(address.parse().ok()?)
        }
    };
    Some(canonical(address))
}

fn is_port(text: &str) -> bool {
    text.bytes().all(|digit| digit.is_ascii_digit()) && text.parse::<u16>().is_ok()
}

/// The value of `for` in one element of a Forwarded field (RFC 7239), if it is
/// there once.
fn forwarded_for(element: &[u8]) -> Option<&[u8]> {
    let (mut quoted, mut escaped) = (false, false);
    let mut pairs = element.split(|&byte| {
        let parts = byte == b';' && !quoted;
        quoted ^= byte == b'"' && !escaped;
        escaped = byte == b'\\' && quoted && !escaped;
        parts
    });
    let mut found = None;
    for pair in &mut pairs {
        if let Some(value) = for_value(pair) {
            if found.is_some() {
                return None;
            }
            found = Some(value);
        }
    }
    found
}

fn for_value(pair: &[u8]) -> Option<&[u8]> {
    let (name, value) = pair.trim_ascii().split_at_checked(4)?;
    if !name.eq_ignore_ascii_case(b"for=") {
        return None;
    }
    Some(value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    fn rules(syntax: Forwarding) -> AddressRules {
        AddressRules {
            trusted: ["10.0.0.0/8", "192.168.1.1", "2001:db8:ffff::/48"]
                .into_iter()
                .filter_map(parse_network)
                .collect(),
            header: Some((0, syntax)),
            ipv6_prefix: 64,
        }
    }

    fn client(syntax: Forwarding, peer: &str, chain: &str) -> std::string::String {
        use std::string::ToString;
        rules(syntax).client(peer.parse().unwrap(), Some(chain.as_bytes())).to_string()
    }

    #[test]
    fn the_rightmost_address_that_is_not_trusted_is_the_client() {
        for (peer, chain, expected) in [
            ("203.0.113.9", "1.1.1.1", "203.0.113.9"), // the peer is no proxy: nothing is believed
            ("10.0.0.1", "1.1.1.1", "1.1.1.1"),
            ("10.0.0.1", "6.6.6.6, 1.1.1.1, 10.2.3.4", "1.1.1.1"), // what the client wrote is to the left
            ("10.0.0.1", "10.9.9.9", "10.9.9.9"),                  // all trusted: the leftmost
            ("10.0.0.1", "", "10.0.0.1"),
            ("10.0.0.1", "unknown", "10.0.0.1"),
            ("10.0.0.1", "1.1.1.1, garbage", "10.0.0.1"),
            ("10.0.0.1", "1.1.1.1:8080", "1.1.1.1"),
            ("10.0.0.1", "1.1.1.1:+80", "10.0.0.1"),
            ("10.0.0.1", "6.6.6.6\", 1.1.1.1", "1.1.1.1"),
            ("10.0.0.1", "[2001:db8::7]:443", "2001:db8::7"),
            ("10.0.0.1", "::ffff:1.1.1.1", "1.1.1.1"),
            ("::ffff:10.0.0.1", "1.1.1.1", "1.1.1.1"),
            ("2001:db8:ffff::1", "9.9.9.9", "9.9.9.9"),
        ] {
            assert_eq!(client(Forwarding::List, peer, chain), expected, "{peer} {chain:?}");
        }
    }

    #[test]
    fn rfc_7239_chains_are_read_alike() {
        for (chain, expected) in [
            ("for=1.1.1.1", "1.1.1.1"),
            ("For=6.6.6.6, proto=https;for=\"1.1.1.1:80\";by=10.0.0.1", "1.1.1.1"),
            ("for=\"[2001:db8::7]:443\"", "2001:db8::7"),
            ("for=_hidden", "10.0.0.1"),
            ("proto=https", "10.0.0.1"),
            // What a proxy quotes of the client's words parts nothing, and an
            // unbalanced quotation mark of the client's spoils nothing.
            ("for=1.1.1.1;host=\"x, for=6.6.6.6;y\"", "1.1.1.1"),
            ("host=\"x;for=6.6.6.6;y\";for=1.1.1.1", "1.1.1.1"),
            ("host=\"x\\\",for=6.6.6.6;\\\\\";for=1.1.1.1", "1.1.1.1"),
            ("for=\"6.6.6.6, for=1.1.1.1", "1.1.1.1"),
            ("for=6.6.6.6;for=1.1.1.1", "10.0.0.1"),
        ] {
            assert_eq!(client(Forwarding::Forwarded, "10.0.0.1", chain), expected, "{chain:?}");
        }
    }

    #[test]
    fn ipv6_counts_by_network() {
        let rules = rules(Forwarding::List);
        let counted = |text: &str| rules.counted(text.parse().unwrap());
        assert_eq!(counted("2001:db8::1"), counted("2001:db8::ffff:2"));
        assert_ne!(counted("2001:db8::1"), counted("2001:db8:0:1::1"));
        assert_ne!(counted("1.1.1.1"), counted("1.1.1.2"));
    }

    #[test]
    fn networks_hold_their_addresses() {
        let holds =
            |network: &str, address: &str| parse_network(network).unwrap().contains(address.parse().unwrap());
        assert!(holds("10.1.2.3/8", "10.255.0.1") && !holds("10.0.0.0/8", "11.0.0.1"));
        assert!(holds("0.0.0.0/0", "255.1.1.1") && !holds("0.0.0.0/0", "::1"));
        assert!(holds("::ffff:10.0.0.0/104", "10.1.1.1"));
        let refused: Vec<_> = [
            "10.0.0.0/33",
            "10.0.0.0/+8",
            "10.0.0.0/0008",
            "10.0.0.0/",
            "::/129",
            "10.0.0/8",
            "",
            "/8",
            "10.0.0.0/-1",
            "::ffff:10.0.0.0/8",
        ]
        .into_iter()
        .filter_map(parse_network)
        .collect();
        assert!(refused.is_empty(), "{refused:?}");
    }

    proptest! {
        #[test]
        fn no_chain_panics(peer in any::<[u8; 4]>(), chain in proptest::collection::vec(any::<u8>(), 0..200)) {
            for syntax in [Forwarding::List, Forwarding::Forwarded] {
                let _ = rules(syntax).client(peer.into(), Some(&chain));
                let _ = rules(syntax).client([10, 0, 0, 1].into(), Some(&chain));
            }
        }
    }
}
