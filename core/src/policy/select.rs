//! From a request to the limits that it must pass.

use core::net::IpAddr;

use super::key::{Digests, KeyRoom, Pieces, ROOM, SubjectKey};
use super::model::{Cost, KeyPart, Matcher, PathPattern, Policy, Rules};
use crate::limit::Limit;
use crate::limiter::MAX_LAYERS;
use crate::table::Request;

/// What a host knows of a request. All of it is the client's word, but for the
/// route and the peer; any bytes are legal.
#[derive(Clone, Copy, Debug)]
pub struct Attributes<'a> {
    /// The name that the host's configuration gives the place; empty if none.
    pub route: &'a [u8],
    /// Such as `GET`.
    pub method: &'a [u8],
    /// Without a port.
    pub host: &'a [u8],
    /// Without the query, decoded and normalised: as the client sent it, it is
    /// the client's to choose which rules match
    /// ([`make_path`](crate::http::make_path)).
    pub path: &'a [u8],
    /// Who opened the connection; none for a local socket.
    pub peer: Option<IpAddr>,
    /// The header fields' values, in the order of [`Rules::headers`]; a field
    /// that is missing is `None`.
    pub headers: &'a [Option<&'a [u8]>],
}

/// The limits that a request must pass, all or none.
#[derive(Clone, Copy, Debug)]
pub struct Selection<'r> {
    layers: [Option<Layer<'r>>; MAX_LAYERS],
    count: usize,
    /// More matched than one request may have; those further on are left out.
    overflow: bool,
}

/// One limit of one policy, for one subject.
#[derive(Clone, Copy, Debug)]
pub struct Layer<'r> {
    /// The policy's place in [`Rules::policies`].
    pub policy: usize,
    /// Which of its limits.
    pub index: usize,
    /// The limit itself.
    pub limit: &'r Limit,
    /// What it costs.
    pub cost: u64,
    /// Do the limits come from an override?
    pub overridden: bool,
    key: &'r [u8],
    /// The policy's name, at the front of the key, has so many bytes.
    name: usize,
}

/// A request that does not tell who it comes from, and must.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the request has no {header:?} header field, and policy {policy:?} needs it")]
pub struct Missing<'r> {
    /// The policy that asks.
    pub policy: &'r str,
    /// The header field.
    pub header: &'r str,
}

impl Default for Selection<'_> {
    #[inline]
    fn default() -> Self {
        Selection::EMPTY
    }
}

impl<'r> Selection<'r> {
    const EMPTY: Selection<'r> = Selection { layers: [None; MAX_LAYERS], count: 0, overflow: false };

    /// The limits, in the order of the document.
    pub fn layers(&self) -> impl Iterator<Item = &Layer<'r>> + Clone {
        self.layers.iter().take(self.count).flatten()
    }

    /// Writes what was asked before, for who tells the answer. It cannot be
    /// asked again: the keys are not known any more.
    pub(crate) fn asked_before(&mut self, layers: impl Iterator<Item = Layer<'r>>) {
        self.count = 0;
        for (room, layer) in self.layers.iter_mut().zip(layers) {
            *room = Some(layer);
            self.count += 1; // at most all
        }
    }

    /// The limit at a place.
    #[must_use]
    pub fn layer(&self, place: usize) -> Option<&Layer<'r>> {
        self.layers.get(place).filter(|_| place < self.count)?.as_ref()
    }

    /// How many limits there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// The limits of these policies alone, by their places in
    /// [`Rules::policies`].
    #[must_use]
    pub fn part(&self, is: impl Fn(usize) -> bool) -> Selection<'r> {
        let mut part = Selection::default();
        let layers = self.layers().filter(|layer| is(layer.policy));
        for (room, layer) in part.layers.iter_mut().zip(layers) {
            *room = Some(*layer);
            part.count += 1; // at most all
        }
        part
    }

    /// Does no policy apply?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Did more limits match than [`MAX_LAYERS`], so that some were left out?
    #[must_use]
    pub fn overflow(&self) -> bool {
        self.overflow
    }
}

impl<'r> Layer<'r> {
    /// A limit that was asked before.
    pub(crate) fn asked_before(
        policy: usize,
        index: usize,
        limit: &'r Limit,
        cost: u64,
        overridden: bool,
    ) -> Layer<'r> {
        Layer { policy, index, limit, cost, overridden, key: &[], name: 0 }
    }

    /// What it is counted under: bytes that no other limit or subject has.
    #[must_use]
    pub fn key(&self) -> &'r [u8] {
        self.key
    }

    /// The values of its subject, as its key has them.
    pub(crate) fn values(&self) -> &'r [u8] {
        self.key.get(self.name.saturating_add(2)..).unwrap_or(&[]) // behind the number of the limit
    }

    /// What its policy's penalties are counted under: the same for all its
    /// limits, and no limit's key.
    pub(crate) fn subject<'s>(&self, room: &'s mut [u8; ROOM]) -> SubjectKey<'s> {
        let (name, rest) = self.key.split_at_checked(self.name).unwrap_or_default();
        let mut subject = SubjectKey::new(room);
        subject.put(name);
        subject.push(b"penalty");
        subject.put(rest.get(2..).unwrap_or(&[])); // behind the number of the limit
        subject
    }

    /// The question to ask of a table.
    #[must_use]
    pub fn request(&self) -> Request<'_> {
        Request { key: self.key, limit: self.limit, cost: self.cost }
    }
}

impl Rules {
    /// The limits of every policy that matches, for this request's subject.
    ///
    /// Their keys are written into `room`, 12 KiB of which few are touched: a
    /// host that has a place for it keeps one for all its requests.
    ///
    /// # Errors
    /// A policy needs an identity that is required and missing.
    pub fn select<'r>(
        &'r self,
        request: &Attributes<'_>,
        room: &'r mut KeyRoom,
    ) -> Result<Selection<'r>, Missing<'r>> {
        let mut selection = Selection::default();
        self.select_into(request, room, &mut selection)?;
        Ok(selection)
    }

    /// As [`select`](Self::select), into a selection that is empty: a host
    /// whose copies are dear has it where it stays.
    ///
    /// # Errors
    /// A policy needs an identity that is required and missing.
    pub fn select_into<'r>(
        &'r self,
        request: &Attributes<'_>,
        room: &'r mut KeyRoom,
        selection: &mut Selection<'r>,
    ) -> Result<(), Missing<'r>> {
        let mut pieces = room.pieces();
        let (listed, default) = match self.policies.split_last() {
            Some((default, listed)) if self.has_default => (listed, Some(default)),
            _ => (self.policies.as_slice(), None),
        };
        let mut matched = false;
        let mut digests = Digests::default();
        for (place, policy) in listed.iter().enumerate() {
            if policy.matcher.matches(request) {
                matched = true;
                self.add(place, policy, request, &mut digests, &mut pieces, selection)?;
            }
        }
        if let (false, Some(policy)) = (matched, default) {
            self.add(listed.len(), policy, request, &mut digests, &mut pieces, selection)?;
        }
        Ok(())
    }

    /// The layers, one bit each, of policies that are so.
    pub(crate) fn layers_of(&self, selection: &Selection<'_>, is: impl Fn(&Policy) -> bool) -> u16 {
        let layers = selection.layers().enumerate();
        let so = layers.filter(|(_, layer)| self.policies.get(layer.policy).is_some_and(&is));
        so.fold(0, |mask, (place, _)| mask | 1 << place) // fewer than MAX_LAYERS
    }

    fn add<'r, 'a>(
        &'r self,
        place: usize,
        policy: &'r Policy,
        request: &Attributes<'a>,
        digests: &mut Digests<'a>,
        pieces: &mut Pieces<'r>,
        selection: &mut Selection<'r>,
    ) -> Result<(), Missing<'r>> {
        let mut key = pieces.write();
        key.put(&policy.prefix);
        let values = key.len();
        let name = values.saturating_sub(2); // the number of the limit, and its length
        self.put_subject(&mut key, policy, request, digests)?;
        let found = policy.overrides.find(key.as_slice().get(values..).unwrap_or(&[]));
        let len = key.len();
        let cost = policy.cost.of(request);
        let mut first: &'r [u8] = &[];
        for (index, limit) in found.unwrap_or(&policy.limits).iter().enumerate() {
            let Some(room) = selection.layers.get_mut(selection.count) else {
                selection.overflow = true;
                break;
            };
            if index > 0 {
                pieces.write().put(first);
            }
            let key = pieces.keep(len);
            if let Some(number) = key.get_mut(name + 1) {
                *number = index as u8; // at most MAX_LAYERS limits
            }
            let key: &'r [u8] = key;
            if index == 0 {
                first = key;
            }
            *room = Some(Layer { policy: place, index, limit, cost, overridden: found.is_some(), key, name });
            selection.count += 1;
        }
        Ok(())
    }

    /// Adds the values of a policy's key.
    pub(super) fn put_subject<'r, 'a>(
        &'r self,
        key: &mut SubjectKey<'_>,
        policy: &'r Policy,
        request: &Attributes<'a>,
        digests: &mut Digests<'a>,
    ) -> Result<(), Missing<'r>> {
        for part in &policy.key {
            let named = match part {
                KeyPart::ApiKey => &self.identity.api_key,
                KeyPart::User => &self.identity.user,
                KeyPart::Tenant => &self.identity.tenant,
                _ => &None,
            };
            let value = match (part, named) {
                (_, Some(named)) => {
                    let value = request.header(named.header);
                    if value.is_none() && named.required {
                        let header = self.headers.get(named.header).map_or("", |name| name.as_str());
                        return Err(Missing { policy: &policy.name, header });
                    }
                    value
                }
                (KeyPart::Route, _) => Some(request.route),
                (KeyPart::Method, _) => Some(request.method),
                (KeyPart::Path, _) => Some(request.path),
                (KeyPart::Header(place), _) => request.header(*place),
                _ => None,
            };
            match (part, value) {
                (KeyPart::ApiKey, Some(value)) => key.push_credential(value, digests),
                (KeyPart::Ip, _) => self.push_client(key, request),
                _ => key.push_value(value.unwrap_or_default(), digests),
            }
        }
        Ok(())
    }

    /// Apart, or the masks of its networks would be made for every request.
    #[inline(never)]
    fn push_client(&self, key: &mut SubjectKey<'_>, request: &Attributes<'_>) {
        match self.client(request) {
            Some(address) => key.push_address(self.identity.ip.counted(address)),
            None => key.push(b""),
        }
    }

    /// The client's address.
    #[must_use]
    pub fn client(&self, request: &Attributes<'_>) -> Option<IpAddr> {
        let rules = &self.identity.ip;
        let chain = rules.header.and_then(|(place, _)| request.header(place));
        request.peer.map(|peer| rules.client(peer, chain))
    }
}

impl<'a> Attributes<'a> {
    /// A header field that is there and not empty.
    fn header(&self, place: usize) -> Option<&'a [u8]> {
        self.headers.get(place).copied().flatten().filter(|value| !value.is_empty())
    }
}

impl Matcher {
    /// Is the policy for this request?
    #[must_use]
    pub fn matches(&self, request: &Attributes<'_>) -> bool {
        self.is_route(request)
            && self.is_host(request)
            && self.is_method(request)
            && self.is_path(request)
            && self.headers.iter().all(|(place, asked)| is_header(request, *place, asked.as_deref()))
    }

    pub(super) fn is_route(&self, request: &Attributes<'_>) -> bool {
        self.route.as_ref().is_none_or(|route| route.as_bytes() == request.route)
    }

    pub(super) fn is_host(&self, request: &Attributes<'_>) -> bool {
        self.host.as_ref().is_none_or(|host| request.host.eq_ignore_ascii_case(host.as_bytes()))
    }

    pub(super) fn is_method(&self, request: &Attributes<'_>) -> bool {
        self.methods.is_empty() || self.methods.iter().any(|method| method.as_bytes() == request.method)
    }

    pub(super) fn is_path(&self, request: &Attributes<'_>) -> bool {
        self.path.as_ref().is_none_or(|pattern| pattern.matches(request.path))
    }
}

/// Is the header field there, and of the value that is asked for?
pub(super) fn is_header(request: &Attributes<'_>, place: usize, asked: Option<&str>) -> bool {
    request.header(place).is_some_and(|value| asked.is_none_or(|asked| value == asked.as_bytes()))
}

impl PathPattern {
    fn matches(&self, path: &[u8]) -> bool {
        match self {
            PathPattern::Exact(exact) => path == exact.as_bytes(),
            PathPattern::Below(prefix) => path.starts_with(prefix.as_bytes()),
        }
    }
}

impl Cost {
    pub(super) fn of(self, request: &Attributes<'_>) -> u64 {
        match self {
            Cost::Fixed(cost) => cost,
            Cost::Header { header, max, default } => {
                request.header(header).and_then(whole_number).map_or(default, |cost| cost.min(max))
            }
        }
    }
}

/// Digits, and no more than a header field has reason to hold. A number too
/// large for 64 bits is the largest: it costs the ceiling, not the default.
fn whole_number(text: &[u8]) -> Option<u64> {
    let is_number = text.len() <= 64 && text.iter().all(u8::is_ascii_digit);
    let digits = is_number.then_some(text)?.iter().map(|digit| u64::from(digit - b'0'));
    Some(digits.fold(0, |number: u64, digit| number.saturating_mul(10).saturating_add(digit)))
}
