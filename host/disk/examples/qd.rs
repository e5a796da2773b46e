//! Measures 4 KiB I/O on one file through this crate, to be compared with fio on the same file:
//! `qd FILE read|write|sync QUEUE_DEPTH SECONDS`. The file is used as it is, and written over by `write` and `sync`.
#![allow(clippy::print_stdout)] // a tool

use kura_block::{Block, BufMut, Bufs, Runtime};
use kura_disk::{Disk, Options, run};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

const BLOCK: u64 = 4096;

fn cpu_time() -> Duration {
    let usage = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let ticks: u64 = usage.split_whitespace().skip(13).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let [_, path, mode, depth, seconds] = args.as_slice() else {
        println!("usage: qd FILE read|write|sync QUEUE_DEPTH SECONDS");
        return;
    };
    let depth: usize = depth.parse().expect("QUEUE_DEPTH is a number");
    let duration = Duration::from_secs(seconds.parse().expect("SECONDS is a number"));
    let (cpu, start) = (cpu_time(), Instant::now());
    let latencies = run(|host| measure(host, path.clone(), mode.clone(), depth, duration)).expect("a ring");
    let (elapsed, cpu) = (start.elapsed(), cpu_time().saturating_sub(cpu));
    let mut latencies = Rc::into_inner(latencies).expect("all tasks have ended").into_inner();
    latencies.sort_unstable();
    let at = |share: f64| f64::from(latencies[((latencies.len() - 1) as f64 * share) as usize]) / 1e3;
    println!(
        "{mode} qd{depth}: {:.0} IOPS, p50 {:.1} us, p99 {:.1} us, CPU {:.2} us an I/O",
        latencies.len() as f64 / elapsed.as_secs_f64(),
        at(0.5),
        at(0.99),
        cpu.as_secs_f64() * 1e6 / latencies.len() as f64
    );
}

async fn measure(
    host: Rc<kura_disk::HostRuntime>,
    path: String,
    mode: String,
    depth: usize,
    duration: Duration,
) -> Rc<RefCell<Vec<u32>>> {
    let disk = Rc::new(Disk::open(&path, Options::default()).expect("the file opens"));
    let latencies = Rc::new(RefCell::new(Vec::with_capacity(1 << 20)));
    let blocks = disk.geometry().size_bytes / BLOCK;
    let (end, mut ended) = tokio::sync::mpsc::channel::<()>(1);
    for task in 0..depth as u64 {
        let (disk, mode, latencies, end) = (Rc::clone(&disk), mode.clone(), Rc::clone(&latencies), end.clone());
        let until = Instant::now() + duration;
        host.spawn(Box::pin(async move {
            let _end = end;
            let data = Bufs::from(BufMut::zeroed(BLOCK as usize).freeze());
            let mut seed = 0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(task + 1);
            while Instant::now() < until {
                seed ^= seed << 13;
                seed ^= seed >> 7;
                seed ^= seed << 17;
                let offset = seed % blocks * BLOCK;
                let begin = Instant::now();
                match mode.as_str() {
                    "read" => drop(disk.read(offset, BLOCK as usize).await.expect("a read")),
                    "write" => disk.write(offset, data.clone(), false).await.expect("a write"),
                    "fua" => disk.write(offset, data.clone(), true).await.expect("a durable write"),
                    _ => {
                        disk.write(offset, data.clone(), false).await.expect("a write");
                        disk.flush().await.expect("a flush");
                    }
                }
                latencies.borrow_mut().push(begin.elapsed().as_nanos() as u32);
            }
        }));
    }
    drop(end);
    let _ = ended.recv().await;
    latencies
}
