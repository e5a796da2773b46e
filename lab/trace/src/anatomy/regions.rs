//! How few places most requests go to.

use std::collections::BTreeMap;

use serde::Serialize;

use super::share;

const FINE_BYTES: u64 = 1 << 20;
const COARSE_BYTES: u64 = 1 << 30;
/// Regions that are counted apart, at most.
const MOST_REGIONS: usize = 1 << 20;

/// How few regions most requests go to; a request counts where it begins.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Concentration {
    /// Bytes of a region.
    pub region_bytes: u64,
    /// Regions of the volume.
    pub regions: u64,
    /// Regions in which a request begins.
    pub touched: u64,
    /// The share of requests in the busiest 1 % of the regions, rounded up to whole ones; none if there are
    /// fewer than 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busiest_1_percent_share: Option<f64>,
    /// The share of requests in the busiest 10 %.
    pub busiest_10_percent_share: f64,
}

/// Counts requests by region. Regions double in size when there would be too many.
pub struct RegionCounter {
    region_bytes: u64,
    counts: BTreeMap<u64, u64>,
    most_regions: usize,
}

impl Default for RegionCounter {
    fn default() -> RegionCounter {
        RegionCounter { region_bytes: FINE_BYTES, counts: BTreeMap::new(), most_regions: MOST_REGIONS }
    }
}

impl RegionCounter {
    #[cfg(test)]
    pub fn with_most_regions(most_regions: usize) -> RegionCounter {
        RegionCounter { most_regions, ..RegionCounter::default() }
    }

    pub fn take(&mut self, offset_bytes: u64) {
        *self.counts.entry(offset_bytes / self.region_bytes).or_default() += 1;
        while self.counts.len() > self.most_regions {
            self.merge(2);
        }
    }

    /// By regions of 1 GiB, and of 1 MiB.
    pub fn end(mut self, capacity_bytes: u64) -> Vec<Concentration> {
        let fine = self.concentration(capacity_bytes);
        if self.region_bytes < COARSE_BYTES {
            self.merge(COARSE_BYTES / self.region_bytes);
        }
        vec![self.concentration(capacity_bytes), fine]
    }

    /// So many neighbours become one.
    fn merge(&mut self, neighbours: u64) {
        let fine = std::mem::take(&mut self.counts);
        for (region, count) in fine {
            *self.counts.entry(region / neighbours).or_default() += count;
        }
        self.region_bytes *= neighbours;
    }

    fn concentration(&self, capacity_bytes: u64) -> Concentration {
        let mut counts: Vec<u64> = self.counts.values().copied().collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let all = counts.iter().sum();
        let regions = capacity_bytes.div_ceil(self.region_bytes);
        let busiest = |part: u64| {
            let few = usize::try_from(regions.div_ceil(part)).unwrap_or(usize::MAX);
            share(counts.iter().take(few).sum(), all)
        };
        Concentration {
            region_bytes: self.region_bytes,
            regions,
            touched: counts.len() as u64,
            busiest_1_percent_share: (regions >= 100).then(|| busiest(100)),
            busiest_10_percent_share: busiest(10),
        }
    }
}
