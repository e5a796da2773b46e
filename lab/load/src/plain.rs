//! Loads whose requests know nothing of time: uniform, Zipf, sequential.

use crate::arrivals::{Arrivals, Clock};
use crate::chance::{self, coin, stride};
use crate::params::{Invalid, Params};
use kura_trace::{Op, Request};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rand_distr::Zipf;

/// Requests of one size, reads and writes mixed by chance.
#[derive(Clone, Debug)]
pub(crate) struct Plain {
    blocks: u64,
    block_bytes: u64,
    reads: f64,
    arrivals: Arrivals,
    places: Places,
}

/// Where requests go.
#[derive(Clone, Copy, Debug)]
enum Places {
    /// Every block alike.
    Uniform,
    /// The block of rank `r` in proportion to `r` to the power of `-theta`; ranks scattered over the range or from
    /// its beginning on.
    Zipf { theta: f64, scattered: bool },
    /// Streams in turn, each from block to block through its own part of the range, and over again.
    Sequential { streams: u64 },
}

impl Plain {
    pub(crate) fn uniform(params: &mut Params) -> Result<Self, Invalid> {
        Self::from_params(params, 4 << 10, |_| Ok(Places::Uniform))
    }

    pub(crate) fn zipf(params: &mut Params) -> Result<Self, Invalid> {
        Self::from_params(params, 4 << 10, |params| {
            let theta = params.number("theta", 0.99, 0.0..=4.0, "skew: 0 is uniform, 0.99 as YCSB has it")?;
            let words = ["scattered", "clustered"];
            let order =
                params.choice("order", "scattered", &words, "the most asked for lie anywhere, or at the front")?;
            Ok(Places::Zipf { theta, scattered: order == "scattered" })
        })
    }

    pub(crate) fn sequential(params: &mut Params) -> Result<Self, Invalid> {
        Self::from_params(params, 64 << 10, |params| {
            Ok(Places::Sequential { streams: params.count("streams", 1, 1..=4096, "streams that take turns")? })
        })
    }

    fn from_params(
        params: &mut Params,
        block_bytes: u64,
        places: impl Fn(&mut Params) -> Result<Places, Invalid>,
    ) -> Result<Self, Invalid> {
        let block_bytes = params.size("block", block_bytes, 512..=(64 << 20), "bytes of a request")?;
        let least = block_bytes * 4096;
        let size = params.size("size", least.max(10 << 30), least..=(1 << 50), "bytes of the range they fall in")?;
        let reads = params.number("reads", 0.5, 0.0..=1.0, "share of reads")?;
        let places = places(params)?;
        let arrivals = Arrivals::from_params(params, 1000.0)?;
        Ok(Self { blocks: size / block_bytes, block_bytes, reads, arrivals, places })
    }

    pub(crate) fn size_bytes(&self) -> u64 {
        self.blocks * self.block_bytes
    }

    pub(crate) fn requests(&self, seed: u64) -> impl Iterator<Item = Request> + Send + use<> {
        let Self { blocks, block_bytes, reads, arrivals, places } = self.clone();
        let mut clock: Clock = arrivals.clock(seed);
        let mut ops = chance::stream(seed, "operations");
        let mut blocks = numbers(places, blocks, chance::stream(seed, "places"));
        std::iter::repeat_with(move || Request {
            at_ns: clock.tick(),
            op: if coin(&mut ops, reads) { Op::Read } else { Op::Write },
            offset_bytes: blocks() * block_bytes,
            len_bytes: block_bytes as u32,
            response_ns: 0,
        })
    }
}

/// Gives the number of one block after the other.
fn numbers(places: Places, blocks: u64, mut rng: ChaCha8Rng) -> Box<dyn FnMut() -> u64 + Send> {
    match places {
        Places::Uniform => Box::new(move || rng.random_range(0..blocks)),
        Places::Zipf { theta, scattered } => {
            // Both are within what the law is defined for.
            let law = Zipf::new(blocks as f64, theta).ok();
            let stride = if scattered { stride(blocks) } else { 1 };
            Box::new(move || {
                let rank = law.map_or(0, |law| rng.sample(law) as u64 - 1).min(blocks - 1);
                (u128::from(rank) * u128::from(stride) % u128::from(blocks)) as u64
            })
        }
        Places::Sequential { streams } => {
            let part = blocks / streams;
            let mut turn = 0;
            Box::new(move || {
                let (stream, step) = (turn % streams, turn / streams);
                turn += 1;
                stream * part + step % part
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::tests::{read_share, take};
    use std::collections::BTreeMap;

    fn counts(text: &str) -> Vec<u64> {
        let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
        for request in take(text) {
            *counts.entry(request.offset_bytes).or_default() += 1;
        }
        counts.into_values().collect()
    }

    #[test]
    fn uniform_asks_for_every_block_alike() {
        let counts = counts("uniform,size=16M,requests=409600,seed=3");
        assert_eq!(counts.len(), 4096);
        // Chi-squared over 4095 degrees of freedom: its mean, within five of its deviations.
        let chi: f64 = counts.iter().map(|count| (*count as f64 - 100.0).powi(2) / 100.0).sum();
        assert!((chi - 4095.0).abs() < 5.0 * (2.0 * 4095.0f64).sqrt(), "chi squared {chi}");
    }

    #[test]
    fn the_mix_is_as_told() {
        for reads in [0.0, 0.11, 0.99, 1.0] {
            let requests = take(&format!("uniform,reads={reads},requests=100000"));
            assert!((read_share(&requests) - reads).abs() < 0.005);
        }
    }

    #[test]
    fn zipf_follows_its_law() {
        for theta in [0.6, 0.99, 1.2] {
            let mut counts = counts(&format!("zipf,size=16M,theta={theta},requests=1000000,seed=4"));
            counts.sort_unstable_by(|a, b| b.cmp(a));
            let weight = |rank: usize| (rank as f64).powf(-theta);
            let total: f64 = (1..=4096).map(weight).sum();
            for ranks in [1, 10, 100, 1000] {
                let expected: f64 = (1..=ranks).map(weight).sum::<f64>() / total;
                let found = counts.iter().take(ranks).sum::<u64>() as f64 / 1e6;
                assert!((found / expected - 1.0).abs() < 0.03, "theta {theta}: {found} in {ranks}, not {expected}");
            }
        }
    }

    #[test]
    fn the_hottest_lie_at_the_front_or_anywhere() {
        let in_front = |order: &str| {
            let requests = take(&format!("zipf,size=1G,order={order},requests=100000"));
            requests.iter().filter(|request| request.offset_bytes < 100 << 20).count() as f64 / 1e5
        };
        // A tenth of the range.
        assert!(in_front("clustered") > 0.7, "{}", in_front("clustered"));
        assert!((0.02..0.4).contains(&in_front("scattered")), "{}", in_front("scattered"));
    }

    #[test]
    fn sequential_streams_run_through_their_parts_and_over() {
        let requests = take("sequential,size=1G,block=128K,streams=4,requests=20000");
        let part = (1u64 << 30) / 4;
        for stream in 0..4 {
            let own: Vec<_> = requests.iter().skip(stream as usize).step_by(4).collect();
            for pair in own.windows(2) {
                let end = pair[0].end_bytes();
                let expected = if end == (stream + 1) * part { stream * part } else { end };
                assert_eq!(pair[1].offset_bytes, expected);
            }
            assert_eq!(own[0].offset_bytes, stream * part);
            assert_eq!(own[2048].offset_bytes, stream * part, "it began over");
        }
    }
}
