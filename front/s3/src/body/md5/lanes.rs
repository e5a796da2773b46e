//! The compression of MD5 (RFC 1321) over several chains at once, each in a lane of the same vectors.
//!
//! Every step of a chain waits for the one before it, so that one chain leaves most of a core idle. What the vectors are is
//! chosen when kura is built: SSE2 or NEON at the least.
#![allow(
    clippy::inline_always,
    reason = "the steps of a block are one piece of code, without which vectors gain nothing"
)]

use std::array::from_fn;
use std::ops::{Add, BitAnd, BitOr, BitXor, Not, Shl, Shr};
use wide::{u32x4, u32x8};

/// Bytes in a block.
pub const BLOCK_BYTES: usize = 64;
/// Chains that go at once.
pub const LANES: usize = 8;
/// The state of a chain.
pub type State = [u32; 4];
/// What a chain begins with.
pub const BEGINNING: State = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];

/// A chain, and the blocks that it takes in now.
#[derive(Debug)]
pub struct Lane<'a> {
    pub state: &'a mut State,
    pub blocks: &'a [[u8; BLOCK_BYTES]],
}

/// Takes in all blocks of up to [`LANES`] lanes.
pub fn compress(mut lanes: Vec<Lane<'_>>) {
    loop {
        lanes.retain(|lane| !lane.blocks.is_empty());
        let common = lanes.iter().map(|lane| lane.blocks.len()).min().unwrap_or(0);
        match lanes.as_mut_slice() {
            [] => return,
            [lane] => md5::block_api::compress(lane.state, lane.blocks),
            few if few.len() <= 4 => side_by_side::<u32x4, 4>(few, common),
            many => side_by_side::<u32x8, 8>(many, common),
        }
        for lane in &mut lanes {
            lane.blocks = &lane.blocks[common..];
        }
    }
}

/// Words of `N` chains.
trait Vector<const N: usize>:
    Copy
    + Add<Output = Self>
    + BitAnd<Output = Self>
    + BitOr<Output = Self>
    + BitXor<Output = Self>
    + Not<Output = Self>
    + Shl<u32, Output = Self>
    + Shr<u32, Output = Self>
    + From<[u32; N]>
    + Into<[u32; N]>
{
    #[inline(always)]
    fn rotate_left(self, bits: u32) -> Self {
        self << bits | self >> (32 - bits)
    }
}

impl Vector<4> for u32x4 {}
impl Vector<8> for u32x8 {}

/// Takes in the first `count` blocks of each; lanes that nobody uses repeat the first one, for nothing.
#[inline(never)]
fn side_by_side<V: Vector<N>, const N: usize>(lanes: &mut [Lane<'_>], count: usize) {
    let of_lane = |index: usize| lanes.get(index).unwrap_or(&lanes[0]);
    let blocks: [&[[u8; BLOCK_BYTES]]; N] = from_fn(|index| &of_lane(index).blocks[..count]);
    let begun: [V; 4] = from_fn(|word| V::from(from_fn(|index| of_lane(index).state[word])));
    let state = (0..count).fold(begun, |state, at| {
        let block: [&[u8; BLOCK_BYTES]; N] = from_fn(|lane| &blocks[lane][at]);
        let message: [V; 16] = from_fn(|word| V::from(from_fn(|lane| word_of(block[lane], word))));
        let next = rounds(state, &message);
        from_fn(|word| state[word] + next[word])
    });
    let words: [[u32; N]; 4] = state.map(V::into);
    for (index, lane) in lanes.iter_mut().enumerate() {
        *lane.state = from_fn(|word| words[word][index]);
    }
}

#[inline(always)]
fn word_of(block: &[u8; BLOCK_BYTES], word: usize) -> u32 {
    let at = word * 4;
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

#[inline(always)]
fn rounds<V: Vector<N>, const N: usize>(state: [V; 4], message: &[V; 16]) -> [V; 4] {
    let state = round(state, message, 0, [7, 12, 17, 22], |step| step, |b, c, d| d ^ (b & (c ^ d)));
    let state = round(state, message, 1, [5, 9, 14, 20], |step| 5 * step + 1, |b, c, d| c ^ (d & (b ^ c)));
    let state = round(state, message, 2, [4, 11, 16, 23], |step| 3 * step + 5, |b, c, d| b ^ c ^ d);
    round(state, message, 3, [6, 10, 15, 21], |step| 7 * step, |b, c, d| c ^ (b | !d))
}

/// One of the four rounds, of sixteen steps: its rotations, which word each step takes, and how it mixes.
#[inline(always)]
fn round<V: Vector<N>, const N: usize>(
    [mut a, mut b, mut c, mut d]: [V; 4],
    message: &[V; 16],
    round: usize,
    rotations: [u32; 4],
    word: impl Fn(usize) -> usize,
    mix: impl Fn(V, V, V) -> V,
) -> [V; 4] {
    for step in 0..16 {
        let constant = V::from([SINES[round * 16 + step]; N]);
        let sum = a + mix(b, c, d) + message[word(step) % 16] + constant;
        (a, d, c, b) = (d, c, b, b + sum.rotate_left(rotations[step % 4]));
    }
    [a, b, c, d]
}

/// The integer parts of 2^32 times the sines of 1 to 64, without their signs.
const SINES: [u32; 64] = [
    0xd76a_a478,
    0xe8c7_b756,
    0x2420_70db,
    0xc1bd_ceee,
    0xf57c_0faf,
    0x4787_c62a,
    0xa830_4613,
    0xfd46_9501,
    0x6980_98d8,
    0x8b44_f7af,
    0xffff_5bb1,
    0x895c_d7be,
    0x6b90_1122,
    0xfd98_7193,
    0xa679_438e,
    0x49b4_0821,
    0xf61e_2562,
    0xc040_b340,
    0x265e_5a51,
    0xe9b6_c7aa,
    0xd62f_105d,
    0x0244_1453,
    0xd8a1_e681,
    0xe7d3_fbc8,
    0x21e1_cde6,
    0xc337_07d6,
    0xf4d5_0d87,
    0x455a_14ed,
    0xa9e3_e905,
    0xfcef_a3f8,
    0x676f_02d9,
    0x8d2a_4c8a,
    0xfffa_3942,
    0x8771_f681,
    0x6d9d_6122,
    0xfde5_380c,
    0xa4be_ea44,
    0x4bde_cfa9,
    0xf6bb_4b60,
    0xbebf_bc70,
    0x289b_7ec6,
    0xeaa1_27fa,
    0xd4ef_3085,
    0x0488_1d05,
    0xd9d4_d039,
    0xe6db_99e5,
    0x1fa2_7cf8,
    0xc4ac_5665,
    0xf429_2244,
    0x432a_ff97,
    0xab94_23a7,
    0xfc93_a039,
    0x655b_59c3,
    0x8f0c_cc92,
    0xffef_f47d,
    0x8584_5dd1,
    0x6fa8_7e4f,
    0xfe2c_e6e0,
    0xa301_4314,
    0x4e08_11a1,
    0xf753_7e82,
    0xbd3a_f235,
    0x2ad7_d2bb,
    0xeb86_d391,
];
