//! Content on its way into the store: bytes in memory, and extents that no record names yet.

use crate::known::Piece;
use crate::store::Inner;
use kura_block::{Buf, Bufs};
use std::rc::Rc;

/// What an object is to contain. Dropped before it is committed, it leaves nothing behind.
#[derive(Default)]
pub struct Content {
    pub(crate) pieces: Vec<Piece>,
    pub(crate) inline: Bufs,
    pub(crate) held: Option<Held>,
}

impl Content {
    /// Bytes of content.
    pub fn len(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.len).sum::<u64>() + self.inline.len() as u64
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<Bufs> for Content {
    fn from(inline: Bufs) -> Self {
        Self { inline, ..Self::default() }
    }
}

impl From<&[u8]> for Content {
    fn from(bytes: &[u8]) -> Self {
        Bufs::from(Buf::copy_of(bytes)).into()
    }
}

/// Extents that go back when this is dropped.
pub(crate) struct Held {
    inner: Rc<Inner>,
    blocks: Vec<u32>,
}

impl Held {
    pub fn new(inner: &Rc<Inner>) -> Self {
        Self { inner: Rc::clone(inner), blocks: Vec::new() }
    }

    pub fn add(&mut self, block: u32) {
        self.blocks.push(block);
    }

    /// One that is not wanted goes back.
    pub fn give_back(&mut self, block: u32) {
        self.blocks.retain(|held| *held != block);
        self.inner.state.borrow_mut().space.release(block);
    }

    /// Takes over what another one holds.
    pub fn adopt(&mut self, other: Option<Held>) {
        self.blocks.extend(other.into_iter().flat_map(|mut other| other.hand_over()));
    }

    /// A record names them now. The caller tells [`crate::space::Space`].
    pub fn hand_over(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.blocks)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.blocks.is_empty() {
            let state = &mut *self.inner.state.borrow_mut();
            for block in self.blocks.drain(..) {
                state.space.release(block);
            }
        }
    }
}
