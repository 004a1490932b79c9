//! Text into the caller's room: a C string, cut if need be.

use core::fmt;

use crate::memory::Outputs;

/// A message that is being written; always ended by NUL where there is room.
pub(crate) struct Message<'r> {
    room: &'r Outputs<u8>,
    at: usize,
}

impl<'r> Message<'r> {
    pub(crate) fn new(room: &'r Outputs<u8>) -> Self {
        room.write(0, 0);
        Message { room, at: 0 }
    }

    /// Writes one whole message.
    pub(crate) fn say(room: &'r Outputs<u8>, text: fmt::Arguments<'_>) {
        let _ = fmt::Write::write_fmt(&mut Message::new(room), text); // cut at the room's end
    }
}

impl fmt::Write for Message<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for &byte in text.as_bytes() {
            if self.at + 1 >= self.room.len() {
                return Ok(());
            }
            self.room.write(self.at, byte);
            self.at += 1;
            self.room.write(self.at, 0);
        }
        Ok(())
    }
}
