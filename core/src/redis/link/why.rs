//! Why a call failed, as the server or the link says it.
//!
//! Two questions matter to whoever asked. Is it the store that fails, or only
//! this key ([`Why::is_store_failure`])? And may the call have been executed
//! all the same ([`Why::may_have_run`])? Then asking again might charge twice.

/// Why a call failed, or a connection is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why<'a> {
    /// No reply by the deadline.
    Timeout,
    /// The connection went after the call was written, or while it was.
    Disconnected,
    /// The connection went before anything of the call was written.
    NotReady,
    /// `LOADING`: the server reads its data from disk.
    Loading,
    /// `READONLY`: a replica; the master is elsewhere.
    ReadOnly,
    /// `CLUSTERDOWN`: nobody serves the slot.
    ClusterDown,
    /// `OOM`: above maxmemory, and nothing may be evicted.
    OutOfMemory,
    /// `BUSY`: a script runs for too long.
    Busy,
    /// `MISCONF`, `MASTERDOWN`, `NOREPLICAS`: the server refuses writes for now.
    NoWrites,
    /// `NOAUTH`, `WRONGPASS`, `NOPERM`: who we are does not suffice.
    Auth,
    /// The database cannot be selected.
    Database,
    /// What came is no reply to what was asked.
    Protocol,
    /// `TRYAGAIN`: the keys of the call are on two nodes while their slot moves.
    TryAgain,
    /// `WRONGTYPE`: something else lies at our key.
    WrongType,
    /// Any other error, as the server words it.
    Script(&'a [u8]),
    /// `MOVED`: the slot is another node's. The call was not executed.
    Moved {
        /// The slot, below 16,384.
        slot: u16,
        /// `host:port`; the host is empty when it is the one that was asked.
        to: &'a [u8],
    },
    /// `ASK`: this key is another node's already. The call was not executed.
    Ask {
        /// The slot, below 16,384.
        slot: u16,
        /// `host:port`; the host is empty when it is the one that was asked.
        to: &'a [u8],
    },
    /// The node is no longer part of the cluster.
    Left,
}

impl<'a> Why<'a> {
    /// Reads an error reply, without its `-`.
    ///
    /// ```
    /// use tollgate_core::redis::link::Why;
    ///
    /// assert_eq!(Why::of(b"OOM command not allowed"), Why::OutOfMemory);
    /// assert_eq!(Why::of(b"MOVED 3999 127.0.0.1:6381"), Why::Moved { slot: 3999, to: b"127.0.0.1:6381" });
    /// assert_eq!(Why::of(b"ERR no"), Why::Script(b"ERR no"));
    /// ```
    #[must_use]
    pub fn of(line: &'a [u8]) -> Why<'a> {
        let mut words = line.split(|byte| *byte == b' ');
        let first = words.next().unwrap_or_default();
        if let Some(why) = Why::of_word(first) {
            return why;
        }
        if PROXY_WITHOUT_SERVER.contains(&line) {
            return Why::Disconnected;
        }
        match first {
            b"MOVED" | b"ASK" => {
                let (Some(slot), Some(to), None) = (words.next().and_then(slot), words.next(), words.next())
                else {
                    return Why::Script(line);
                };
                if first == b"ASK" { Why::Ask { slot, to } } else { Why::Moved { slot, to } }
            }
            // Before version 7, errors within a script are told in its own: "ERR Error running
            // script (call to f_…): @user_script:3: WRONGTYPE …".
            b"ERR" if line.starts_with(b"ERR Error running script") => {
                let word = |word: &'a [u8]| Why::of_word(word.strip_prefix(b"-").unwrap_or(word));
                words.find_map(word).unwrap_or(Why::Script(line))
            }
            _ => Why::Script(line),
        }
    }

    /// Is it the store that fails, for any key? These count for a circuit
    /// breaker; the others are of one key, or of one call.
    #[must_use]
    pub fn is_store_failure(&self) -> bool {
        !matches!(self, Why::TryAgain | Why::WrongType | Why::Script(_) | Why::Moved { .. } | Why::Ask { .. })
    }

    /// May the call have been executed? Then it must not be sent again.
    #[must_use]
    pub fn may_have_run(&self) -> bool {
        matches!(self, Why::Timeout | Why::Disconnected | Why::Protocol | Why::Script(_))
    }

    /// A word for logs and metrics.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Why::Timeout => "timeout",
            Why::Disconnected => "disconnected",
            Why::NotReady => "not_ready",
            Why::Loading => "loading",
            Why::ReadOnly => "read_only",
            Why::ClusterDown => "cluster_down",
            Why::OutOfMemory => "out_of_memory",
            Why::Busy => "busy",
            Why::NoWrites => "no_writes",
            Why::Auth => "auth",
            Why::Database => "database",
            Why::Protocol => "protocol",
            Why::TryAgain => "try_again",
            Why::WrongType => "wrong_type",
            Why::Script(_) => "script",
            Why::Moved { .. } => "moved",
            Why::Ask { .. } => "ask",
            Why::Left => "left",
        }
    }

    /// Without the server's words, so that it may be kept.
    pub(crate) fn plain(self) -> Why<'static> {
        match self {
            Why::Timeout => Why::Timeout,
            Why::Disconnected => Why::Disconnected,
            Why::NotReady => Why::NotReady,
            Why::Loading => Why::Loading,
            Why::ReadOnly => Why::ReadOnly,
            Why::ClusterDown => Why::ClusterDown,
            Why::OutOfMemory => Why::OutOfMemory,
            Why::Busy => Why::Busy,
            Why::NoWrites => Why::NoWrites,
            Why::Auth => Why::Auth,
            Why::Database => Why::Database,
            Why::Protocol => Why::Protocol,
            Why::TryAgain => Why::TryAgain,
            Why::WrongType => Why::WrongType,
            Why::Script(_) => Why::Script(b""),
            Why::Moved { slot, .. } => Why::Moved { slot, to: b"" },
            Why::Ask { slot, .. } => Why::Ask { slot, to: b"" },
            Why::Left => Why::Left,
        }
    }

    fn of_word(word: &[u8]) -> Option<Why<'static>> {
        Some(match word {
            b"LOADING" => Why::Loading,
            b"READONLY" => Why::ReadOnly,
            b"CLUSTERDOWN" => Why::ClusterDown,
            b"OOM" => Why::OutOfMemory,
            b"BUSY" => Why::Busy,
            b"MISCONF" | b"MASTERDOWN" | b"NOREPLICAS" => Why::NoWrites,
            b"NOAUTH" | b"WRONGPASS" | b"NOPERM" => Why::Auth,
            b"TRYAGAIN" => Why::TryAgain,
            b"WRONGTYPE" => Why::WrongType,
            _ => return None,
        })
    }
}

/// What Envoy's redis_proxy answers in the server's place when it has no
/// connection to one, or lost it: its own words, without an error's first one.
const PROXY_WITHOUT_SERVER: [&[u8]; 3] =
    [b"upstream failure", b"upstream protocol error", b"no upstream host"];

fn slot(text: &[u8]) -> Option<u16> {
    let slot: u16 = core::str::from_utf8(text).ok()?.parse().ok()?;
    (slot < crate::redis::cluster::SLOTS).then_some(slot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_within_scripts_are_what_they_are_in_every_version() {
        let old =
            b"ERR Error running script (call to f_a): @user_script:3: WRONGTYPE Operation against a key";
        assert_eq!(Why::of(old), Why::WrongType);
        let old =
            b"ERR Error running script (call to f_a): @user_script:1: @user_script: 1: -OOM command not";
        assert_eq!(Why::of(old), Why::OutOfMemory);
        assert_eq!(
            Why::of(b"WRONGTYPE Operation against a key script: ab, on @user_script:1."),
            Why::WrongType
        );
        assert_eq!(
            Why::of(b"ERR user_script:1: OOM is my variable"),
            Why::Script(b"ERR user_script:1: OOM is my variable")
        );
    }

    #[test]
    fn a_proxy_that_has_no_server_is_a_connection_that_is_gone() {
        for line in [&b"upstream failure"[..], b"upstream protocol error", b"no upstream host"] {
            let why = Why::of(line);
            assert_eq!((why, why.is_store_failure(), why.may_have_run()), (Why::Disconnected, true, true));
        }
        assert_eq!(Why::of(b"upstream"), Why::Script(b"upstream"));
    }

    #[test]
    fn only_a_whole_redirection_is_one() {
        assert_eq!(Why::of(b"ASK 16383 :7000"), Why::Ask { slot: 16383, to: b":7000" });
        for line in
            [&b"MOVED"[..], b"MOVED 1", b"MOVED 16384 a:1", b"MOVED -1 a:1", b"MOVED 1 a:1 b", b"ASK x a:1"]
        {
            assert_eq!(Why::of(line), Why::Script(line));
        }
    }
}
