//! Pages in the host's shared data, under keys `tollgate/<zone>/<pages>/<n>`:
//! a fixed number of them, as such a key can never be deleted.

use tollgate_core::key::Seed;
use tollgate_core::pages::{Blobs, Unavailable};
use tollgate_core::policy::plugin::Embedded;

use crate::abi;

/// The host's shared data.
#[derive(Debug)]
pub(crate) struct HostPages {
    /// The key up to and with the last slash, then the number.
    key: Vec<u8>,
    prefix: usize,
    is_shared: bool,
}

impl HostPages {
    /// Of a host that has none, if `is_shared` says so.
    pub(crate) fn new(embedded: &Embedded, is_shared: bool) -> HostPages {
        let key = format!("tollgate/{}/{}/", embedded.zone, embedded.pages).into_bytes();
        HostPages { prefix: key.len(), key, is_shared }
    }

    fn key(&mut self, page: u32) -> &[u8] {
        self.key.truncate(self.prefix);
        self.key.extend_from_slice(itoa::Buffer::new().format(page).as_bytes());
        &self.key
    }
}

impl Blobs for HostPages {
    type Bytes = Vec<u8>;

    fn read(&mut self, page: u32) -> Result<Option<(Vec<u8>, u32)>, Unavailable> {
        if !self.is_shared {
            return Err(Unavailable);
        }
        abi::shared(self.key(page)).map_err(|_| Unavailable)
    }

    fn write(&mut self, page: u32, bytes: &[u8], read: Option<u32>) -> Result<bool, Unavailable> {
        abi::set_shared(self.key(page), bytes, read).map_err(|_| Unavailable)
    }
}

/// The secret under which keys are hashed, the same for all workers: drawn by
/// the first.
pub(crate) fn seed(zone: &str) -> Result<Seed, abi::Status> {
    let key = format!("tollgate/{zone}/seed");
    let mut error = abi::Status(abi::CAS_MISMATCH);
    for _ in 0..8 {
        let version = match abi::shared(key.as_bytes())? {
            Some((bytes, version)) => match bytes.as_slice().try_into().map(u128::from_le_bytes) {
                Ok(number) => return Ok(Seed([number as u64, (number >> 64) as u64])),
                Err(_) => Some(version), // others wrote here, and the key cannot be deleted
            },
            None => None,
        };
        let [low, high] = abi::random()?;
        let number = u128::from(high) << 64 | u128::from(low);
        if let Err(status) = abi::set_shared(key.as_bytes(), &number.to_le_bytes(), version) {
            error = status;
        }
    }
    Err(error)
}
