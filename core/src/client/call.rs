//! Calls, kept until a connection takes them.

use alloc::vec::Vec;
use core::mem;

use ::redis::Cmd;

use crate::redis::link::Refused;
use crate::redis::script::{Call, ScriptId};
use crate::redis::store::Transport;
use crate::time::Nanos;

/// A command and whom its answer is for.
pub(super) struct Kept {
    pub(super) ticket: u64,
    pub(super) deadline: Nanos,
    /// Does a request wait for it, and tell when its time is over?
    pub(super) is_waited_for: bool,
    pub(super) command: Cmd,
    /// What the command runs; a probe runs none.
    pub(super) script: Option<ScriptId>,
}

/// Takes calls without sending them. Of no use, and no allocation, until there
/// is one.
pub(super) struct Collected {
    pub(super) calls: Vec<Kept>,
    /// Is there a connection that they could be sent on?
    is_connected: bool,
}

impl Collected {
    pub(super) fn new(is_connected: bool) -> Collected {
        Collected { calls: Vec::new(), is_connected }
    }

    pub(super) fn take(&mut self) -> Vec<Kept> {
        mem::take(&mut self.calls)
    }
}

impl Transport for Collected {
    fn send(&mut self, ticket: u64, call: &Call<'_>, deadline: Nanos, _now: Nanos) -> Result<(), Refused> {
        if !self.is_connected {
            return Err(Refused::NotConnected);
        }
        let script = call.script();
        let mut command = ::redis::cmd("EVALSHA");
        command.arg(script.sha1().as_slice());
        call.arguments(&mut |argument| {
            command.arg(argument);
        });
        self.calls.push(Kept { ticket, deadline, is_waited_for: false, command, script: Some(script) });
        Ok(())
    }

    fn probe(&mut self, ticket: u64, key: &[u8], deadline: Nanos, _now: Nanos) -> Result<(), Refused> {
        if !self.is_connected {
            return Err(Refused::NotConnected);
        }
        let mut command = ::redis::cmd("SET");
        command.arg(key).arg("1").arg("PX").arg(1000);
        self.calls.push(Kept { ticket, deadline, is_waited_for: false, command, script: None });
        Ok(())
    }
}

impl Kept {
    /// The same with the script's text, for a server that does not know it.
    pub(super) fn with_source(&self) -> Option<Cmd> {
        let mut command = ::redis::cmd("EVAL");
        command.arg(self.script?.source());
        for argument in self.command.args_iter().skip(2) {
            if let ::redis::Arg::Simple(bytes) = argument {
                command.arg(bytes);
            }
        }
        Some(command)
    }
}
