//! The inside of a link: what is shared by its own interface and by the
//! router of a cluster.

use super::*;

/// What a server says, whatever was asked, and closes or takes nothing more.
const LAST_WORDS: [&[u8]; 3] = [b"NOAUTH", b"DENIED", b"ERR max number of clients"];

impl Link {
    pub(super) fn with(
        setup: Setup,
        (transmit_bytes, receive_bytes, in_flight): (usize, usize, usize),
        (connect_timeout, stall_timeout): (Nanos, Nanos),
        backoff: Backoff,
    ) -> Result<Link, LinkError> {
        // Beyond the calls: all first commands, each once, and CLUSTER SLOTS.
        let bytes = transmit_bytes.saturating_add(setup.len()).saturating_add(64);
        let entries = in_flight.saturating_add(setup.count()).saturating_add(1);
        let mut done = VecDeque::new();
        done.try_reserve_exact(in_flight).map_err(|_| LinkError::Memory)?;
        Ok(Link {
            state: State::Waiting(0),
            is_first: true,
            awaited_until: 0,
            is_greeted: false,
            ended: false,
            closing: None,
            ready_due: false,
            useless: false,
            queue: Queue::new(bytes, entries).ok_or(LinkError::Memory)?,
            done,
            in_flight,
            transmit_bytes,
            scratch: zeros(transmit_bytes.min(MAX_CALL)).ok_or(LinkError::Memory)?,
            known: Known::new().ok_or(LinkError::Memory)?,
            input: zeros(receive_bytes).ok_or(LinkError::Memory)?,
            input_start: 0,
            input_end: 0,
            // A part that is cut fits in the buffer whole: its line, its bytes, its end.
            reader: Reader::new(receive_bytes.saturating_sub(MAX_LINE).saturating_sub(2)),
            integers: zeros(MAX_INTEGERS).ok_or(LinkError::Memory)?,
            integer_count: 0,
            loading: zeros(setup.scripts()).ok_or(LinkError::Memory)?,
            setup,
            slots_due: false,
            last_reply_at: 0,
            connect_timeout,
            stall_timeout,
            backoff,
            error: [0; ERROR_TEXT],
            error_len: 0,
        })
    }

    /// As [`send`](Self::send), for a slot of a cluster.
    pub(crate) fn send_to(
        &mut self,
        slot: u16,
        ticket: u64,
        call: &impl Command,
        deadline: Nanos,
        now: Nanos,
    ) -> Result<(), Refused> {
        self.room(deadline, now)?;
        let index = call.script();
        let mut command = Encoder::new(&mut self.scratch);
        command.encoded(self.setup.evalsha(index).ok_or(Refused::TooLong)?, 2);
        call.write(&mut command, &mut self.known);
        let bytes = command.finish().ok_or(Refused::TooLong)?;
        let entry = Entry { slot, ticket, deadline, ..entry(Kind::Call(index), Holder::Ticket, now) };
        take(&mut self.queue, self.transmit_bytes, entry, [bytes, &[]])
    }

    /// As [`probe`](Self::probe), for a slot of a cluster.
    pub(crate) fn probe_to(
        &mut self,
        slot: u16,
        ticket: u64,
        key: &[u8],
        deadline: Nanos,
        now: Nanos,
    ) -> Result<(), Refused> {
        self.room(deadline, now)?;
        let mut command = Encoder::new(&mut self.scratch);
        for arg in [b"SET", key, b"1", b"PX", b"1000"] {
            command.arg(arg);
        }
        let bytes = command.finish().ok_or(Refused::TooLong)?;
        let entry = Entry { slot, ticket, deadline, ..entry(Kind::Probe, Holder::Ticket, now) };
        take(&mut self.queue, self.transmit_bytes, entry, [bytes, &[]])
    }

    /// Another link as this one was made.
    pub(crate) fn like(&self, seed: u64) -> Result<Link, LinkError> {
        let sizes = (self.transmit_bytes, self.input.len(), self.in_flight);
        let times = (self.connect_timeout, self.stall_timeout);
        Link::with(self.setup.clone(), sizes, times, self.backoff.like(seed))
    }

    /// Is the connection to be closed?
    pub(crate) fn poll_close(&mut self) -> Option<Why<'static>> {
        self.closing.take()
    }

    /// Is a connection to be opened? Then it is being opened.
    pub(crate) fn poll_connect(&mut self, now: Nanos) -> bool {
        match self.state {
            State::Waiting(at) if at <= now && self.closing.is_none() => {
                self.state = State::Connecting(now.saturating_add(self.connect_timeout));
                true
            }
            _ => false,
        }
    }

    /// Was the last connection of no use? Says so once.
    pub(crate) fn take_useless(&mut self) -> bool {
        core::mem::take(&mut self.useless)
    }

    /// Ends whatever there is, for good; [`start`](Self::start) begins anew.
    /// Is there a connection to close?
    pub(crate) fn stop(&mut self, now: Nanos) -> bool {
        let open = self.closing.take().is_some() || !matches!(self.state, State::Off | State::Waiting(_));
        self.close(Why::Left, now, false);
        self.state = State::Off;
        open
    }

    /// Connects from now on.
    pub(crate) fn start(&mut self) {
        self.state = State::Waiting(0);
        (self.is_first, self.awaited_until) = (true, 0);
        self.useless = false;
        self.backoff.reset();
    }

    /// Asks for `CLUSTER SLOTS`, unless that is being asked already.
    pub(crate) fn ask_slots(&mut self, now: Nanos) -> bool {
        let command: &[u8] = b"*2\r\n$7\r\nCLUSTER\r\n$5\r\nSLOTS\r\n";
        if self.slots_due || !self.is_ready() {
            return false;
        }
        self.slots_due = self.queue.push(entry(Kind::Slots, Holder::Link, now), [command, &[]]);
        self.slots_due
    }

    /// Is a reply to `CLUSTER SLOTS` to come?
    pub(crate) fn slots_due(&self) -> bool {
        self.slots_due
    }

    /// The bytes of the entry that was redirected, without `ASKING`.
    pub(crate) fn copy_redirected<'b>(&mut self, into: &'b mut [u8]) -> Option<(Entry, &'b [u8])> {
        let entry = *self.queue.front()?;
        let from = if entry.asking { ASKING.len() } else { 0 };
        let bytes = into.get_mut(..entry.len.saturating_sub(from))?;
        self.queue.copy_front(from, bytes);
        Some((entry, bytes))
    }

    /// The entry that was redirected is no longer this link's. `None` if nobody waited.
    pub(crate) fn finish_redirect(&mut self) -> Option<Entry> {
        self.queue.pop().filter(|entry| entry.holder == Holder::Ticket)
    }

    /// Takes over an entry of another link, behind `ASKING` if need be.
    pub(crate) fn adopt(
        &mut self,
        given: &Entry,
        bytes: &[u8],
        asking: bool,
        now: Nanos,
    ) -> Result<(), Refused> {
        if !self.is_ready() {
            return Err(Refused::NotConnected); // the router keeps it: another node may have its slot first
        }
        self.room(given.deadline, now)?;
        let first = if asking { ASKING } else { &[] };
        let entry = Entry { queued_at: now, tries: 0, asking, before: asking, ..*given };
        take(&mut self.queue, self.transmit_bytes, entry, [first, bytes])
    }

    /// The next event, by places. Parts of a reply to `CLUSTER SLOTS` go to `slots`.
    pub(crate) fn step(&mut self, now: Nanos, slots: &mut dyn FnMut(&Part<'_>)) -> Option<Step> {
        loop {
            if let Some((ticket, why)) = self.done.pop_front() {
                return Some(Step::Done { ticket, why });
            }
            if core::mem::take(&mut self.ready_due) {
                return Some(Step::Ready);
            }
            if !matches!(self.state, State::Setup(_) | State::Ready) {
                return None;
            }
            let bytes = self.input.get(self.input_start..self.input_end).unwrap_or_default();
            let part = match self.reader.next(bytes) {
                Ok(Some(part)) => part,
                Ok(None) if self.ended => {
                    self.close(Why::Disconnected, now, false);
                    continue;
                }
                Ok(None) => return None,
                Err(_) => {
                    self.close(Why::Protocol, now, true);
                    continue;
                }
            };
            // The text of an error, by place: between its `-` and CR LF.
            let line = self.input_start.saturating_add(1)
                ..self.input_start.saturating_add(part.len.saturating_sub(2));
            self.input_start = self.input_start.saturating_add(part.len);
            let Some(front) = self.queue.front() else {
                // Nothing was asked, and yet it speaks: "ERR max number of clients reached".
                let error = part_is_error(&part);
                self.give_up(&line, error, now);
                continue;
            };
            if front.before {
                front.before = !part.last; // the reply to ASKING; what matters comes behind it
                continue;
            }
            let kind = front.kind;
            let digest_is_right = match (kind, part.token) {
                (Kind::Load(index), Token::Bulk(sha1)) => {
                    self.setup.script(index).is_some_and(|script| script.sha1 == sha1)
                }
                (Kind::Slots, _) => {
                    slots(&part);
                    false
                }
                _ => false,
            };
            // From here on without the text, which lies in the input.
            let part = Part { token: plain(part.token), ..part };
            let expected = match (kind, part.token) {
                (Kind::Slots, _) => {
                    if part.last {
                        self.slots_due = false;
                        self.complete(now);
                        return Some(Step::Slots { complete: !part_is_error(&part) });
                    }
                    true
                }
                (Kind::Name | Kind::Ping, Token::Error(_)) if self.is_refusal(kind, &line) => {
                    self.give_up_setup(kind, &line, now);
                    true
                }
                (Kind::Name | Kind::Ping, _) => {
                    if part.last {
                        self.complete(now);
                    }
                    true
                }
                (Kind::Call(_) | Kind::Probe, Token::Error(_)) if part.depth == 0 => {
                    if let Some(step) = self.refused(kind, line, now) {
                        return Some(step);
                    }
                    true
                }
                (Kind::Call(_), _) => match self.gather(&part) {
                    true if part.last => {
                        if let Some(step) = self.answered(now) {
                            return Some(step);
                        }
                        true
                    }
                    gathered => gathered,
                },
                (Kind::Probe, Token::Simple(_)) if part.last => {
                    self.integer_count = 0;
                    if let Some(step) = self.answered(now) {
                        return Some(step);
                    }
                    true
                }
                (Kind::Load(index), Token::Bulk(_)) if part.last && digest_is_right => {
                    self.loaded(index);
                    self.complete(now);
                    true
                }
                (Kind::Load(index), Token::Error(_)) if self.state == State::Ready => {
                    // Loaded again, in vain: the calls behind it will say why.
                    self.loaded(index);
                    self.complete(now);
                    true
                }
                (Kind::Auth | Kind::Select, Token::Simple(_)) if part.last => {
                    self.complete(now);
                    true
                }
                (Kind::Auth | Kind::Select | Kind::Load(_), Token::Error(_)) => {
                    self.give_up_setup(kind, &line, now);
                    true
                }
                _ => false,
            };
            if !expected {
                self.close(Why::Protocol, now, true);
            }
        }
    }

    /// An event, from its places.
    pub(crate) fn event(&self, step: Step) -> Event<'_> {
        match step {
            Step::Ready | Step::Slots { .. } => Event::Ready,
            Step::Reply { ticket, asked_at } => {
                let integers = self.integers.get(..self.integer_count).unwrap_or_default();
                Event::Reply { ticket, integers, asked_at }
            }
            Step::Failed { ticket, line } => Event::Failed { ticket, why: self.why(line) },
            Step::Done { ticket, why } => Event::Failed { ticket, why },
            Step::Redirect { line } => Event::Failed { ticket: 0, why: self.why(line) },
        }
    }

    /// The error that lies there.
    pub(crate) fn why(&self, line: Range<usize>) -> Why<'_> {
        Why::of(self.input.get(line).unwrap_or_default())
    }

    pub(crate) fn is_connected(&self) -> bool {
        matches!(self.state, State::Setup(_) | State::Ready) && !self.ended
    }

    /// Is there room for a call? One that comes before the first connection
    /// stands has its place behind the commands that this begins with.
    fn room(&mut self, deadline: Nanos, now: Nanos) -> Result<(), Refused> {
        let is_early = self.is_first && !self.ended && self.state != State::Off;
        if !self.is_ready() && !is_early {
            return Err(Refused::NotConnected);
        }
        if self.waiting() >= self.in_flight || self.queue.calls() >= self.in_flight {
            return Err(Refused::Full);
        }
        if matches!(self.state, State::Waiting(_) | State::Connecting(_)) {
            self.queue_setup(now);
        }
        if !self.is_ready() && self.awaited_until == 0 {
            self.awaited_until = deadline;
        }
        Ok(())
    }

    /// The commands that a connection begins with, unless they are there.
    pub(super) fn queue_setup(&mut self, now: Nanos) {
        if !self.queue.is_empty() {
            return; // calls are behind them
        }
        for index in 0..self.setup.count() {
            if let Some((kind, bytes)) = self.setup.command(index) {
                // The queue is empty, and its reserve is for this.
                let _ = self.queue.push(entry(kind, Holder::Link, now), [bytes, &[]]);
            }
        }
    }

    /// When the connection counts as dead, if nothing is answered: not before
    /// the call that is next has had its time.
    pub(super) fn stalls_at(&self) -> Option<Nanos> {
        let since = self.queue.oldest()?.max(self.last_reply_at);
        let stall = since.saturating_add(self.stall_timeout);
        Some(stall.max(self.queue.front_deadline().unwrap_or(0)).min(NEVER.saturating_sub(1)))
    }

    /// Ends the connection: every ticket that waits has failed.
    pub(super) fn close(&mut self, why: Why<'static>, now: Nanos, tell: bool) {
        // A connection that is silent is gone; the deadlines are the tickets' own.
        let of_written = if why == Why::Protocol { why } else { Why::Disconnected };
        let done = &mut self.done;
        self.queue.clear(|ticket, written| {
            done.push_back((ticket, if written { of_written } else { Why::NotReady }));
        });
        if tell && !self.ended {
            self.closing = Some(why);
        }
        self.useless |= self.state != State::Ready || why == Why::ReadOnly;
        // One that took too long may be there the next time; nobody was not there.
        self.is_first &= why == Why::Timeout && self.state != State::Ready;
        self.awaited_until = 0;
        self.ended = false;
        self.ready_due = false;
        self.slots_due = false;
        self.loading.fill(false);
        self.reader.reset();
        self.integer_count = 0;
        (self.input_start, self.input_end) = (0, 0);
        self.state = State::Waiting(now.saturating_add(self.backoff.next()));
    }

    /// The front entry has its reply.
    fn complete(&mut self, now: Nanos) -> Option<Entry> {
        self.last_reply_at = now;
        let entry = self.queue.pop();
        if matches!(self.state, State::Setup(_)) {
            self.is_greeted = true;
            if !self.queue.is_setup_next() {
                self.state = State::Ready;
                self.ready_due = true;
            }
        }
        entry
    }

    /// The front call was executed.
    fn answered(&mut self, now: Nanos) -> Option<Step> {
        let entry = self.complete(now)?;
        self.backoff.reset();
        entry.holder.is_told().then_some(Step::Reply { ticket: entry.ticket, asked_at: entry.asked_at })
    }

    /// The front call has an error for a reply.
    fn refused(&mut self, kind: Kind, line: Range<usize>, now: Nanos) -> Option<Step> {
        let text = self.input.get(line.clone()).unwrap_or_default();
        let why = Why::of(text).plain();
        let lost = text.starts_with(b"NOSCRIPT");
        let anonymous = text.starts_with(b"NOAUTH");
        let (waits, tries) = {
            let front = self.queue.front()?;
            (front.holder == Holder::Ticket, front.tries)
        };
        match (kind, why) {
            (Kind::Call(script), _) if lost && waits && tries < MAX_TRIES && self.reload(script, now) => {
                self.last_reply_at = now;
                self.queue.again(now);
                return None;
            }
            (_, Why::Moved { .. } | Why::Ask { .. } | Why::TryAgain) if waits => {
                self.last_reply_at = now;
                return Some(Step::Redirect { line });
            }
            _ => {}
        }
        if why.is_store_failure() || matches!(why, Why::Script(_)) {
            self.remember(&line);
        }
        let entry = self.complete(now)?;
        if why == Why::ReadOnly || anonymous {
            self.close(why, now, true);
        }
        entry.holder.is_told().then_some(Step::Failed { ticket: entry.ticket, line })
    }

    /// Sees to it that a script is loaded before whatever is sent from now on.
    fn reload(&mut self, script: usize, now: Nanos) -> bool {
        let Some(loading) = self.loading.get_mut(script) else { return false };
        if *loading {
            return true;
        }
        let Some(command) = self.setup.load(script) else { return false };
        *loading = self.queue.push(entry(Kind::Load(script), Holder::Link, now), [command, &[]]);
        *loading
    }

    fn loaded(&mut self, script: usize) {
        if let Some(loading) = self.loading.get_mut(script) {
            *loading = false;
        }
    }

    /// Takes a part of the reply to a call. Can it be one?
    fn gather(&mut self, part: &Part<'_>) -> bool {
        match (part.depth, part.token) {
            (0, Token::Array(_)) => self.integer_count = 0,
            (depth @ (0 | 1), Token::Integer(integer)) => {
                if depth == 0 {
                    self.integer_count = 0;
                }
                let Some(place) = self.integers.get_mut(self.integer_count) else { return false };
                *place = integer;
                self.integer_count = self.integer_count.saturating_add(1);
            }
            _ => return false,
        }
        true
    }

    /// Is this error the end of the connection? A name, or who may do no more
    /// than we need, is refused for other reasons too.
    fn is_refusal(&self, kind: Kind, line: &Range<usize>) -> bool {
        let text = self.input.get(line.clone()).unwrap_or_default();
        match kind {
            Kind::Ping => !text.starts_with(b"NOPERM"),
            _ => LAST_WORDS.iter().any(|words| text.starts_with(words)),
        }
    }

    /// The server refused one of the first commands.
    fn give_up_setup(&mut self, kind: Kind, line: &Range<usize>, now: Nanos) {
        self.remember(line);
        let why = match (kind, self.why(line.clone()).plain()) {
            (Kind::Auth, Why::Script(_)) => Why::Auth, // "ERR AUTH <password> called without any password"
            (Kind::Select, Why::Script(_)) => Why::Database, // "ERR DB index is out of range"
            (_, why) => why,
        };
        self.close(why, now, true);
    }

    fn give_up(&mut self, line: &Range<usize>, error: bool, now: Nanos) {
        let mut why = Why::Protocol;
        if error {
            self.remember(line);
            why = self.why(line.clone()).plain();
        }
        self.close(why, now, true);
    }

    fn remember(&mut self, line: &Range<usize>) {
        let text = self.input.get(line.clone()).unwrap_or_default();
        self.error_len = text.len().min(ERROR_TEXT);
        for (place, byte) in self.error.iter_mut().zip(text) {
            *place = *byte;
        }
    }
}

/// Queues a call, if the calls together do not exceed what they may.
fn take(queue: &mut Queue, most: usize, entry: Entry, parts: [&[u8]; 2]) -> Result<(), Refused> {
    let len = parts.iter().fold(queue.call_bytes(), |sum, part| sum.saturating_add(part.len()));
    if len > most || !queue.push(entry, parts) {
        return Err(Refused::Full);
    }
    Ok(())
}

pub(crate) fn entry(kind: Kind, holder: Holder, now: Nanos) -> Entry {
    Entry {
        kind,
        holder,
        slot: 0,
        ticket: 0,
        deadline: NEVER,
        asked_at: now,
        queued_at: now,
        len: 0,
        tries: 0,
        hops: 0,
        waits: 0,
        asking: false,
        before: false,
    }
}

fn plain(token: Token<'_>) -> Token<'static> {
    match token {
        Token::Simple(_) => Token::Simple(b""),
        Token::Error(_) => Token::Error(b""),
        Token::Integer(integer) => Token::Integer(integer),
        Token::Bulk(_) => Token::Bulk(b""),
        Token::Null => Token::Null,
        Token::Array(count) => Token::Array(count),
    }
}

fn part_is_error(part: &Part<'_>) -> bool {
    matches!(part.token, Token::Error(_))
}
