//! The inside of a router: what its links say, and what follows for the others.

use core::ops::Range;

use crate::redis::link::{Refused, Step, Why};
use crate::time::{NEVER, Nanos};

use super::parked::Parked;
use super::topology::{Address, NOBODY};
use super::{MAX_HOPS, MAX_NODES, MAX_WAITS, MILLISECOND, Node, REFRESH, RESEED, Router, key_slot};

impl Router {
    pub(super) fn place_of(&self, slot: u16) -> Option<usize> {
        let Some(cluster) = &self.cluster else { return Some(0) };
        match cluster.map.get(usize::from(slot)) {
            Some(&place) if place != NOBODY => Some(usize::from(place)),
            // Any node knows better.
            _ => self.nodes.iter().position(|node| node.link.is_ready()),
        }
    }

    pub(super) fn node_of(&mut self, key: &[u8]) -> Option<(u16, &mut Node)> {
        let slot = if self.cluster.is_some() { key_slot(key) } else { 0 };
        let place = self.place_of(slot)?;
        Some((slot, self.nodes.get_mut(place)?))
    }

    pub(super) fn step(&mut self, now: Nanos) -> Option<(usize, Step)> {
        let Some(cluster) = &mut self.cluster else {
            let link = &mut self.nodes.first_mut()?.link;
            return match link.step(now, &mut |_| {})? {
                Step::Redirect { line } => {
                    let ticket = link.finish_redirect()?.ticket;
                    Some((0, Step::Failed { ticket, line }))
                }
                step => Some((0, step)),
            };
        };
        if let Some(ticket) = cluster.lot.poll_failed() {
            return Some((0, Step::Done { ticket, why: Why::Timeout }));
        }
        for _ in 0..self.nodes.len() {
            if self.turn >= self.nodes.len() {
                self.turn = 0;
            }
            let place = self.turn;
            while let (Some(node), Some(cluster)) = (self.nodes.get_mut(place), &mut self.cluster) {
                let topology = &mut cluster.topology;
                let Some(step) = node.link.step(now, &mut |part| topology.take(part)) else { break };
                match step {
                    Step::Ready => self.flush(now),
                    Step::Slots { complete } => {
                        cluster.asking = false;
                        cluster.wanted |= !complete;
                        if complete {
                            self.take_topology();
                            self.flush(now);
                        }
                    }
                    Step::Redirect { line } => {
                        if let Some(step) = self.redirect(place, line, now) {
                            return Some((place, step));
                        }
                    }
                    step => {
                        let why = match &step {
                            Step::Failed { line, .. } => node.link.why(line.clone()),
                            _ => Why::Left,
                        };
                        cluster.wanted |= matches!(why, Why::ClusterDown | Why::ReadOnly);
                        return Some((place, step));
                    }
                }
            }
            self.turn = place.saturating_add(1);
        }
        let ready = self.is_ready();
        let cluster = self.cluster.as_mut()?;
        let told = core::mem::replace(&mut cluster.told_ready, ready);
        (ready && !told).then_some((0, Step::Ready))
    }

    /// A node sends a call on. Fails it when there is nowhere to.
    fn redirect(&mut self, from: usize, line: Range<usize>, now: Nanos) -> Option<Step> {
        let cluster = self.cluster.as_mut()?;
        let node = self.nodes.get_mut(from)?;
        let asked = node.address;
        let copied =
            node.link.copy_redirected(&mut cluster.scratch).map(|(entry, bytes)| (entry, bytes.len()));
        let (why, to) = match node.link.why(line.clone()) {
            Why::Moved { slot, to } => {
                cluster.wanted = true;
                (Why::Moved { slot, to: b"" }, Address::of_redirect(to, &asked))
            }
            Why::Ask { slot, to } => (Why::Ask { slot, to: b"" }, Address::of_redirect(to, &asked)),
            _ => (Why::TryAgain, None),
        };
        let ticket = node.link.finish_redirect()?.ticket;
        let failed = Some(Step::Failed { ticket, line });
        let Some((mut entry, len)) = copied else { return failed };
        // Two nodes that each name the other do not agree yet: that takes a moment.
        let waits = why == Why::TryAgain || entry.hops >= MAX_HOPS;
        if waits && entry.waits >= MAX_WAITS {
            return failed;
        }
        let target = match to {
            Some(address) => self.meet(&address),
            None => None,
        };
        let cluster = self.cluster.as_mut()?;
        let (ask, at) = match (why, target) {
            _ if waits => {
                let wait = MILLISECOND.checked_shl(u32::from(entry.waits)).unwrap_or(REFRESH);
                entry.waits = entry.waits.saturating_add(1);
                entry.hops = 0;
                (None, now.saturating_add(wait))
            }
            (Why::Ask { .. }, Some(target)) => (Some(target), now),
            (Why::Moved { slot, .. }, Some(target)) => {
                if let Some(place) = cluster.map.get_mut(usize::from(slot)) {
                    *place = u8::try_from(target).unwrap_or(NOBODY);
                }
                (None, now)
            }
            _ => return failed,
        };
        if let Why::Moved { slot, .. } | Why::Ask { slot, .. } = why {
            entry.slot = slot;
            entry.hops = if waits { 0 } else { entry.hops.saturating_add(1) };
        }
        let bytes = cluster.scratch.get(..len)?;
        let mut at = at;
        if let (true, Some(node)) = (at <= now, target.and_then(|target| self.nodes.get_mut(target))) {
            at = match node.link.adopt(&entry, bytes, ask.is_some(), now) {
                Ok(()) => return None,
                Err(Refused::NotConnected) => NEVER,
                Err(_) => now.saturating_add(MILLISECOND),
            };
        }
        if cluster.lot.push(Parked { entry, len, ask, at }, bytes) { None } else { failed }
    }

    /// Sends what was parked, as far as its nodes take it.
    pub(super) fn flush(&mut self, now: Nanos) {
        let Some(cluster) = &mut self.cluster else { return };
        for _ in 0..cluster.lot.len() {
            let Some(parked) = cluster.lot.peek() else { return };
            let due = parked.at <= now || parked.at == NEVER;
            let of_slot = || match cluster.map.get(usize::from(parked.entry.slot)) {
                Some(&place) if place != NOBODY => Some(usize::from(place)),
                _ => None,
            };
            let place = parked.ask.or_else(of_slot);
            let node = place.and_then(|place| self.nodes.get_mut(place)).filter(|node| node.link.is_ready());
            let (Some(node), true) = (node, due) else {
                cluster.lot.put_off(if due { NEVER } else { parked.at });
                continue;
            };
            let Some((parked, bytes)) = cluster.lot.front(&mut cluster.scratch) else { return };
            match node.link.adopt(&parked.entry, bytes, parked.ask.is_some(), now) {
                Ok(()) => cluster.lot.pop(),
                Err(_) => cluster.lot.put_off(now.saturating_add(MILLISECOND)),
            }
        }
    }

    /// The node at an address: one that is known, or a new one, if there is room.
    fn meet(&mut self, address: &Address) -> Option<usize> {
        let same = |node: &Node| node.used && node.address.as_bytes() == address.as_bytes();
        if let Some(place) = self.nodes.iter().position(same) {
            if let Some(node) = self.nodes.get_mut(place) {
                node.leaving = false;
            }
            return Some(place);
        }
        if let Some(place) = self.nodes.iter().position(|node| !node.used && !node.close) {
            let node = self.nodes.get_mut(place)?;
            node.address = *address;
            node.used = true;
            node.leaving = false;
            node.link.start();
            return Some(place);
        }
        let place = self.nodes.len();
        if place >= MAX_NODES {
            return None;
        }
        let seed = self.seed.wrapping_add(u64::try_from(place).unwrap_or(0));
        let link = self.nodes.first()?.link.like(seed).ok()?;
        self.nodes.push(Node { link, address: *address, used: true, leaving: false, close: false });
        Some(place)
    }

    /// The reply to `CLUSTER SLOTS` is complete.
    fn take_topology(&mut self) {
        let Some(cluster) = &self.cluster else { return };
        let count = cluster.topology.masters().len();
        if count == 0 {
            return; // nobody has met yet: what is known is better
        }
        for node in self.nodes.iter_mut().filter(|node| node.used) {
            node.leaving = true;
        }
        let mut places = [NOBODY; MAX_NODES];
        for (master, place) in places.iter_mut().enumerate().take(count) {
            let address = self.cluster.as_ref().and_then(|cluster| cluster.topology.masters().get(master));
            let Some(address) = address.copied() else { continue };
            let met = self.meet(&address).and_then(|met| u8::try_from(met).ok());
            *place = met.unwrap_or(NOBODY);
        }
        let Some(cluster) = &mut self.cluster else { return };
        for (slot, master) in cluster.map.iter_mut().zip(cluster.topology.slots()) {
            *slot = places.get(usize::from(*master)).copied().unwrap_or(NOBODY);
        }
        cluster.known = true;
    }

    /// Is there a node that cannot be reached now?
    pub(super) fn is_partial(&self) -> bool {
        self.nodes.iter().any(|node| node.used && !node.leaving && !node.link.is_ready())
    }

    /// Lets nodes go that left, and asks who serves what, if that is due.
    pub(super) fn maintain(&mut self, now: Nanos) {
        let partial = self.is_partial();
        let Some(cluster) = &mut self.cluster else { return };
        for (place, node) in self.nodes.iter_mut().enumerate() {
            if node.used && node.leaving && node.link.waiting() == 0 {
                node.close = node.link.stop(now);
                node.used = false;
                node.leaving = false;
                cluster.lot.forget(place);
            }
        }
        if cluster.asking && !self.nodes.iter().any(|node| node.link.slots_due()) {
            cluster.asking = false; // its connection went
            cluster.wanted = true;
        }
        let ready = self.nodes.iter().filter(|node| node.link.is_ready()).count();
        if ready == 0 {
            if cluster.reseed_at == 0 {
                cluster.reseed_at = now.saturating_add(RESEED);
            } else if cluster.reseed_at <= now {
                cluster.reseed_at = now.saturating_add(RESEED);
                self.address = self.address.saturating_add(1) % self.addresses.len().max(1);
                if let Some(address) = self.addresses.get(self.address).copied() {
                    let _ = self.meet(&address);
                }
            }
            return;
        }
        cluster.reseed_at = now.saturating_add(RESEED);
        if cluster.asking || cluster.refresh_at > now || !(cluster.wanted || partial) {
            return;
        }
        // Not always the same one: it may know less than the others.
        self.address = self.address.wrapping_add(1);
        let chosen = self.address.checked_rem(ready).unwrap_or(0);
        let mut nodes = self.nodes.iter_mut().filter(|node| node.link.is_ready());
        if let Some(node) = nodes.nth(chosen) {
            cluster.refresh_at = now.saturating_add(REFRESH);
            if node.link.ask_slots(now) {
                cluster.topology.begin(node.address);
                cluster.asking = true;
                cluster.wanted = false;
            }
        }
    }
}
