//! What a link says first on every connection: who it is, which database, and
//! every script, so that calls need only name one. The first command is a small
//! one, always: a server that does not know us takes no long ones, and closes.
//!
//! All of it is encoded once. A script that the server lost (`SCRIPT FLUSH`, a
//! restart) is loaded again from the same bytes.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::redis::resp::Encoder;
use crate::redis::script::ScriptId;

use super::queue::Kind;
use super::ring::zeros;
use super::{LinkConfig, LinkError};

/// A script, as the server knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Script {
    /// The SHA-1 of the source, in lower-case hexadecimal.
    pub sha1: [u8; 40],
    /// The Lua source: these, one after another.
    pub source: &'static [&'static str],
}

impl Script {
    /// Bytes of the source.
    fn len(&self) -> usize {
        self.source.iter().map(|part| part.len()).sum()
    }
}

/// The first commands, in their order.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    bytes: Box<[u8]>,
    /// What each is, and where it ends.
    ends: Box<[(Kind, usize)]>,
    scripts: Box<[Script]>,
    /// How a call of each begins.
    evalsha: Box<[[u8; EVALSHA]]>,
}

/// Bytes of `EVALSHA` and a digest, as arguments.
const EVALSHA: usize = 13 + 5 + 40 + 2;

impl Setup {
    pub(super) fn new(config: &LinkConfig<'_>) -> Result<Setup, LinkError> {
        let mut scripts = Vec::new();
        match config.scripts {
            Some(given) => {
                scripts.try_reserve_exact(given.len()).map_err(|_| LinkError::Memory)?;
                scripts.extend_from_slice(given);
            }
            None => {
                scripts.try_reserve_exact(ScriptId::ALL.len()).map_err(|_| LinkError::Memory)?;
                scripts
                    .extend(ScriptId::ALL.iter().map(|id| Script { sha1: *id.sha1(), source: id.parts() }));
            }
        }
        let credentials = config.username.map_or(0, <[u8]>::len) + config.password.map_or(0, <[u8]>::len);
        let name = config.name.map_or(0, <[u8]>::len);
        if credentials > 64 * 1024 || name > 64 * 1024 {
            return Err(LinkError::Credentials(credentials.max(name)));
        }
        // Generous: each command has a few words more than what varies.
        let longest = scripts.iter().map(Script::len).max().unwrap_or(0);
        let mut source: Vec<u8> = Vec::new();
        source.try_reserve_exact(longest).map_err(|_| LinkError::Memory)?;
        let scratch = longest.max(credentials).max(name).saturating_add(256);
        let mut scratch = zeros::<u8>(scratch).ok_or(LinkError::Memory)?;
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        let mut add = |kind: Kind, args: &[&[u8]]| {
            let mut command = Encoder::new(&mut scratch);
            args.iter().for_each(|arg| command.arg(arg));
            let command = command.finish().ok_or(LinkError::Memory)?;
            bytes.try_reserve_exact(command.len()).map_err(|_| LinkError::Memory)?;
            bytes.extend_from_slice(command);
            ends.try_reserve(1).map_err(|_| LinkError::Memory)?;
            ends.push((kind, bytes.len()));
            Ok(())
        };
        match (config.username, config.password) {
            (Some(user), password) => add(Kind::Auth, &[b"AUTH", user, password.unwrap_or_default()])?,
            (None, Some(password)) => add(Kind::Auth, &[b"AUTH", password])?,
            (None, None) => {}
        }
        if config.database != 0 {
            let mut digits = itoa::Buffer::new();
            add(Kind::Select, &[b"SELECT", digits.format(config.database).as_bytes()])?;
        }
        if let Some(name) = config.name {
            add(Kind::Name, &[b"CLIENT", b"SETNAME", name])?;
        } else if config.username.is_none() && config.password.is_none() && config.database == 0 {
            add(Kind::Ping, &[b"PING"])?;
        }
        for (index, script) in scripts.iter().enumerate() {
            source.clear();
            script.source.iter().for_each(|part| source.extend_from_slice(part.as_bytes()));
            add(Kind::Load(index), &[b"SCRIPT", b"LOAD", &source])?;
        }
        let mut evalsha = Vec::new();
        evalsha.try_reserve_exact(scripts.len()).map_err(|_| LinkError::Memory)?;
        evalsha.resize(scripts.len(), [0; EVALSHA]);
        for (room, script) in evalsha.iter_mut().zip(&scripts) {
            let (name, digest) = room.split_at_mut(18);
            name.copy_from_slice(b"$7\r\nEVALSHA\r\n$40\r\n");
            let (digest, end) = digest.split_at_mut(40);
            digest.copy_from_slice(&script.sha1);
            end.copy_from_slice(b"\r\n");
        }
        Ok(Setup {
            evalsha: evalsha.into_boxed_slice(),
            bytes: bytes.into_boxed_slice(),
            ends: ends.into_boxed_slice(),
            scripts: scripts.into_boxed_slice(),
        })
    }

    /// Bytes of all commands.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// How many commands.
    pub(super) fn count(&self) -> usize {
        self.ends.len()
    }

    /// The script with this number.
    pub(super) fn script(&self, index: usize) -> Option<&Script> {
        self.scripts.get(index)
    }

    /// How a call of that script begins: two arguments, as they are sent.
    pub(super) fn evalsha(&self, index: usize) -> Option<&[u8]> {
        self.evalsha.get(index).map(|bytes| &bytes[..])
    }

    /// How many scripts.
    pub(super) fn scripts(&self) -> usize {
        self.scripts.len()
    }

    /// The `index`th command.
    pub(super) fn command(&self, index: usize) -> Option<(Kind, &[u8])> {
        let (kind, end) = *self.ends.get(index)?;
        let start = match index.checked_sub(1) {
            Some(before) => self.ends.get(before)?.1,
            None => 0,
        };
        Some((kind, self.bytes.get(start..end)?))
    }

    /// The command that loads the script with this number.
    pub(super) fn load(&self, script: usize) -> Option<&[u8]> {
        let before = self.count().checked_sub(self.scripts())?;
        Some(self.command(before.checked_add(script)?)?.1)
    }
}
