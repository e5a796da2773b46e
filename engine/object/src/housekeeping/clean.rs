//! The cleaner: what is alive in a segment goes elsewhere, so that the segment is free.
//!
//! A move is an entry of the log like any other: a version's record again, unchanged but for where its bytes lie. It
//! happens only if the version is still where the cleaner read it.

use crate::batch::Durability;
use crate::known::{Extent, Known, Piece};
use crate::log::entry::{self, Head};
use crate::log::record::{Draft, Set};
use crate::log::submit::{Edit, Prepared, Ready, Refusal};
use crate::object::Row;
use crate::policy;
use crate::read::Pins;
use crate::space::extent;
use crate::space::segment::Use;
use crate::store::Inner;
use crate::upload::Upload;
use kura_block::{Buf, Bufs, Error, Kind, Result};
use std::collections::BTreeSet;
use std::rc::Rc;

/// Bytes that the cleaner adds to the log at a time: users wait for no more than that.
const STEP_BYTES: usize = 128 << 10;
/// Rows of the index that are looked at without a pause.
const STEP_ROWS: usize = 512;
/// What a piece takes of a record at least: four numbers and a checksum.
const PIECE_BYTES_LEAST: usize = 8;

/// A version to be moved.
struct Moving {
    row: Row,
    edit: Edit,
}

impl Inner {
    /// Moves what is alive out of a segment of the log. What cannot be read of it stays, and all else goes.
    pub async fn clean_log_segment(self: &Rc<Self>, segment: u32) -> Result<()> {
        let place = self.state.borrow().space.place(segment);
        match extent::read_device(&*self.device, place, self.segment_bytes as usize).await {
            Ok(bytes) => self.clean_entries(place, &bytes.contiguous()).await?,
            // A bad sector spoils the whole read. What lies around it is found by the index.
            Err(error) => tracing::warn!(segment, %error, "a segment of the object store's log cannot be read at once"),
        }
        self.count(|counters| counters.cleaned_segments += 1);
        if self.state.borrow().space.segments[segment as usize].live_bytes > 0 {
            self.sweep(&BTreeSet::from([segment])).await?;
        }
        Ok(())
    }

    /// Moves what is alive of the entries that follow one another from the beginning of a segment on.
    async fn clean_entries(self: &Rc<Self>, place: u64, bytes: &Buf) -> Result<()> {
        let mut step = Vec::new();
        let mut step_bytes = 0;
        let mut offset = 0;
        while let Some(head) = bytes.get(offset..).and_then(Head::read) {
            let end = offset + head.entry_bytes as usize;
            if head.store != self.state.borrow().log.store || end > bytes.len() {
                break;
            }
            // An entry that is damaged, or was never whole, is left alone: the sweep behind finds what is alive in it.
            let records = entry::records(&head, &bytes[offset..end]).map(|all| all.records).unwrap_or_default();
            for (at, record) in records {
                let record_at = offset + at as usize;
                let Some(known) = self.alive_at(&record.row, place + record_at as u64)? else { continue };
                let Some((_, attributes)) = record.set else { continue };
                let inline_at = record_at + record.head_bytes as usize;
                let inline = &bytes[inline_at..inline_at + record.inline_bytes as usize];
                if crc32c::crc32c(inline) != record.inline_crc {
                    continue;
                }
                step_bytes += known.log_bytes() as usize;
                step.push(Moving { row: record.row, edit: edit(known, attributes, Buf::copy_of(inline).into()) });
                if step_bytes >= STEP_BYTES {
                    self.log_moves(std::mem::take(&mut step)).await?;
                    step_bytes = 0;
                }
            }
            offset = end;
        }
        self.log_moves(step).await
    }

    /// The version, if its record is the one at `place`.
    pub fn alive_at(&self, row: &Row, place: u64) -> Result<Option<Known>> {
        Ok(self.state.borrow().index.get(row)?.filter(|known| known.place == place))
    }

    /// Logs moves in one batch, but for those of versions that are gone or have changed; resolves when it is written.
    async fn log_moves(self: &Rc<Self>, moves: Vec<Moving>) -> Result<()> {
        let mut changes = Vec::with_capacity(moves.len());
        for Moving { row, edit } in moves {
            if self.alive_at(&row, edit.known.place)?.is_some_and(|known| known.revision == edit.known.revision) {
                changes.push((row.partition(), row.key().to_vec(), Ready::Edit(edit)));
            }
        }
        if changes.is_empty() {
            return Ok(());
        }
        let mut batch = Prepared { conditions: Vec::new(), changes, durability: Durability::Memory };
        let taken = {
            let state = &mut *self.state.borrow_mut();
            let floor = state.floor(policy::For::Cleaner);
            state.submit(&mut batch, floor)
        };
        match taken {
            Ok((ticket, _)) => {
                self.wake.notify_one();
                self.written(&ticket).await
            }
            // Nothing lies between the look and the submission.
            Err(Refusal::Stale) => Ok(()),
            Err(Refusal::Error(error)) => Err(error),
        }
    }

    /// Moves what is alive out of data segments that are mostly empty.
    pub async fn evacuate(self: &Rc<Self>, victims: &BTreeSet<u32>) -> Result<()> {
        self.state.borrow_mut().space.begin_evacuation(victims);
        let result = self.sweep(victims).await;
        self.state.borrow_mut().space.end_evacuation();
        self.count(|counters| counters.evacuated_segments += victims.len() as u64);
        result
    }

    /// Goes through the index for what lies in the victims, extents or records, and moves it. A victim of which something
    /// cannot be moved is stuck: others come first until the next checkpoint.
    pub async fn sweep(self: &Rc<Self>, victims: &BTreeSet<u32>) -> Result<()> {
        let mut from = Row::newest(Vec::new());
        loop {
            let mut found = Vec::new();
            let (mut rows, mut last) = (0, None);
            {
                let state = self.state.borrow();
                let is_in = |extent: &Extent| victims.contains(&state.space.segment_of_block(extent.block));
                let has_record = |known: &Known| victims.contains(&state.space.segment_of_place(known.place));
                state.index.scan(&from, |row, known| {
                    rows += 1;
                    if has_record(&known) || known.extents().iter().any(is_in) {
                        found.push((row.clone(), known));
                    }
                    last = Some(row);
                    rows < STEP_ROWS
                })?;
            }
            for (row, known) in found {
                let segments = self.segments_of(&known, victims);
                match self.move_out(row, known, victims).await {
                    // What cannot be read stays where it is: a scrub names it. So does what would be in more
                    // pieces than its record has room for. What was taken back is gone.
                    Err(error) if self.goes_on(&error) => self.note_stuck(&segments, &error),
                    result => result?,
                }
            }
            match last.filter(|_| rows == STEP_ROWS) {
                Some(Row { name, version }) if version.0 > 0 => from = Row::new(name, version.0 - 1),
                _ => return Ok(()),
            }
            // Users first.
            self.runtime.sleep(std::time::Duration::ZERO).await;
        }
    }

    /// True when an error concerns one version, and the store goes on.
    fn goes_on(&self, error: &Error) -> bool {
        matches!(error.kind(), Kind::Corrupt | Kind::Device | Kind::Retry | Kind::Invalid)
            && self.state.borrow().failed.is_none()
    }

    /// Which of the victims have something of a version.
    fn segments_of(&self, known: &Known, victims: &BTreeSet<u32>) -> Vec<u32> {
        let space = &self.state.borrow().space;
        let of_extents = known.extents().into_iter().map(|extent| space.segment_of_block(extent.block));
        let all = of_extents.chain([space.segment_of_place(known.place)]);
        all.filter(|segment| victims.contains(segment)).collect()
    }

    fn note_stuck(&self, segments: &[u32], error: &Error) {
        for segment in segments {
            if self.state.borrow_mut().space.stuck.insert(*segment) {
                let what = "a segment of the object store cannot be emptied";
                tracing::warn!(segment, %error, "{what}: {}", remedy(error.kind()));
            }
        }
    }

    /// The most pieces that a version may be in when its extents have moved; `Invalid` where its record has no room for those
    /// that it is in.
    fn pieces_limit(&self, row: &Row, edit: &Edit, moved: usize) -> Result<usize> {
        let (known, attributes, inline) = (edit.known.clone(), edit.attributes.clone(), edit.inline.clone());
        let inline_bytes = inline.len();
        let draft = Draft { row: row.clone(), set: Some(Set { known, attributes, inline }) };
        let limit = self.state.borrow().log.batch_limit_bytes();
        let left = limit.checked_sub(draft.encode(0).len() + inline_bytes).ok_or_else(too_many_pieces)?;
        Ok(moved + left / PIECE_BYTES_LEAST)
    }

    /// Copies the extents of a version that lie in the victims, and logs its record anew, with where they are now.
    async fn move_out(self: &Rc<Self>, row: Row, known: Known, victims: &BTreeSet<u32>) -> Result<()> {
        // As it is now: a version that was taken back since it was listed may have left its place and revision to another.
        let Some(known) = self.alive_at(&row, known.place)? else { return Ok(()) };
        let _pins = Pins::of(self, &known);
        let read = self.record_at(&row, known).await?;
        let mut edit = edit(read.known, read.attributes, read.inline);
        let extents = edit.known.extents();
        let moved: Vec<Extent> = extents.into_iter().filter(|extent| self.lies_in(*extent, victims)).collect();
        let mut upload = Upload::for_cleaner(self, self.pieces_limit(&row, &edit, moved.len())?);
        // Each extent's bytes that are still in use, one after another.
        let mut starts = Vec::new();
        for extent in &moved {
            let (from, end) = used_bytes(&edit.known.pieces, *extent);
            starts.push((*extent, from, upload.len()));
            let mut checksums = None;
            let data = extent::read(&*self.device, *extent, from, (end - from) as usize, &mut checksums).await?;
            upload.write(data).await?;
        }
        let content = upload.finish().await?;
        let pieces = std::mem::take(&mut edit.known.pieces);
        for piece in pieces {
            let start = starts.iter().find(|(extent, ..)| Some(*extent) == piece.extent);
            match start {
                None => edit.known.pieces.push(piece),
                Some((_, from, at)) => {
                    let begin = at + u64::from(piece.from) - from;
                    edit.known.pieces.extend(cut(&content.pieces, begin..begin + piece.len));
                }
            }
        }
        edit.held = content.held;
        self.log_moves(vec![Moving { row, edit }]).await
    }

    fn lies_in(&self, extent: Extent, segments: &BTreeSet<u32>) -> bool {
        segments.contains(&self.state.borrow().space.segment_of_block(extent.block))
    }

    /// Segments to clean now, best first, each with the share of it that is alive; none when nothing is to be gained. None that
    /// would not be empty then: what an upload holds and what is dead and read or waits for a flush stays where it is.
    pub fn victims(&self, usage: Use, count: usize, wanted: bool) -> Vec<(u32, f64)> {
        let state = self.state.borrow();
        let now = state.log.last_sequence();
        let most = if wanted { policy::MOST_ALIVE_WANTED } else { policy::MOST_ALIVE };
        let unmovable = if usage == Use::Data { state.space.unmovable() } else { BTreeSet::new() };
        let mut facts: Vec<(f64, u32, f64)> = Vec::new();
        for (number, segment) in state.space.segments.iter().enumerate() {
            let number = number as u32;
            let stays = segment.is_open() || state.space.stuck.contains(&number) || unmovable.contains(&number);
            if segment.usage != usage || stays {
                continue;
            }
            let share = match usage {
                Use::Log => f64::from(segment.live_bytes) / f64::from(self.segment_bytes),
                _ => f64::from(segment.taken_blocks) / f64::from(state.space.segment_blocks),
            };
            if share > 0.0 && share <= most {
                let age = now.saturating_sub(segment.last_sequence);
                facts.push((policy::cleaning_gain(share, age, wanted), number, share));
            }
        }
        let order = |a: &(f64, u32, f64), b: &(f64, u32, f64)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
        // Of all that a large store has, only the best are put in order.
        if count < facts.len() {
            facts.select_nth_unstable_by(count, order);
            facts.truncate(count);
        }
        facts.sort_unstable_by(order);
        facts.into_iter().map(|(_, number, share)| (number, share)).collect()
    }
}

/// What is to be done where something of a segment stays in it.
fn remedy(kind: Kind) -> &'static str {
    match kind {
        Kind::Invalid => {
            "nothing is damaged, but where it would go, one of its objects would be in more pieces than its record takes: it \
             stays where it is until there is more room in one place"
        }
        Kind::Retry => "nothing is damaged: it is tried again after the next checkpoint",
        _ => "run a scrub to name what is damaged",
    }
}

/// A version would be in more pieces than its record has room for.
pub(crate) fn too_many_pieces() -> Error {
    Error::invalid("an object would be in more pieces than its record has room for")
}

fn edit(known: Known, attributes: crate::object::Attributes, inline: Bufs) -> Edit {
    Edit { known, attributes, inline, held: None, is_move: true }
}

/// The bytes of an extent that pieces use: from the first one to behind the last one.
fn used_bytes(pieces: &[Piece], extent: Extent) -> (u64, u64) {
    let used = pieces.iter().filter(|piece| piece.extent == Some(extent));
    let bounds = used.map(|piece| (u64::from(piece.from), u64::from(piece.from) + piece.len));
    bounds.fold((u64::MAX, 0), |(from, end), (a, b)| (from.min(a), end.max(b)))
}

/// The pieces of a range of the content that `pieces` are.
pub(crate) fn cut(pieces: &[Piece], range: std::ops::Range<u64>) -> Vec<Piece> {
    let mut out = Vec::new();
    let mut at = 0;
    for piece in pieces {
        let (from, end) = (range.start.max(at), range.end.min(at + piece.len));
        if from < end {
            let skip = if piece.extent.is_some() { (from - at) as u32 } else { 0 };
            out.push(Piece { extent: piece.extent, from: piece.from + skip, len: end - from });
        }
        at += piece.len;
    }
    out
}
