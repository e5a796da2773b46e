//! The trees that are copied, and what changes in them.

use crate::shell;
use anyhow::{Result, bail};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

/// Bytes that do not compress, each time others.
struct Noise(u64);

impl Noise {
    fn fill(&mut self, buffer: &mut [u8]) {
        for chunk in buffer.chunks_mut(8) {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            chunk.copy_from_slice(&self.0.to_le_bytes()[..chunk.len()]);
        }
    }

    fn file(&mut self, path: &Path, size_bytes: usize) -> Result<()> {
        let file = File::create(path)?;
        let mut buffer = vec![0; size_bytes.min(1 << 20)];
        for offset in (0..size_bytes).step_by(buffer.len().max(1)) {
            let length = buffer.len().min(size_bytes - offset);
            self.fill(&mut buffer[..length]);
            file.write_all_at(&buffer[..length], offset as u64)?;
        }
        Ok(())
    }
}

const MB: usize = 1_000_000;

/// 10 x 100 MB in one directory and 4,686 x 100 KB in a tree; 30,000 x 4 KB in 30 directories; 2 x 1 GiB.
pub fn grow(tree: &str, root: &Path) -> Result<()> {
    let mut noise = Noise(0x9e37_79b9_7f4a_7c15);
    fs::create_dir_all(root)?;
    match tree {
        "d1" => {
            fs::create_dir(root.join("big"))?;
            for file in 0..10 {
                noise.file(&root.join(format!("big/{file}")), 100 * MB)?;
            }
            let mut level = vec![root.join("tree")];
            for depth in 0..=4 {
                let mut next = Vec::new();
                for directory in level {
                    fs::create_dir(&directory)?;
                    for file in 0..6 {
                        noise.file(&directory.join(format!("f{file}")), MB / 10)?;
                    }
                    next.extend((0..5).map(|inner| directory.join(format!("d{inner}"))));
                }
                level = if depth < 4 { next } else { Vec::new() };
            }
        }
        "d2" => {
            for directory in 0..30 {
                let directory = root.join(format!("d{directory}"));
                fs::create_dir(&directory)?;
                for file in 0..1000 {
                    noise.file(&directory.join(format!("f{file}")), 4096)?;
                }
            }
        }
        "d3" => {
            for file in 0..2 {
                noise.file(&root.join(format!("{file}.img")), 1 << 30)?;
            }
        }
        tree => bail!("no tree {tree}: there are d1, d2 and d3"),
    }
    Ok(())
}

/// One per cent of the small files are written anew; of the large ones, of their blocks of 4 KiB, in place.
pub fn change(tree: &str, root: &Path, round: usize) -> Result<()> {
    let mut noise = Noise(77 + round as u64);
    if tree == "d3" {
        for file in 0..2 {
            let file = File::options().write(true).open(root.join(format!("{file}.img")))?;
            let mut block = vec![0; 4096];
            for _ in 0..(1_u64 << 30) / 4096 / 100 {
                noise.fill(&mut block);
                let at = u64::from_le_bytes(block[..8].try_into()?) % ((1 << 30) / 4096);
                file.write_all_at(&block, at * 4096)?;
            }
        }
        return Ok(());
    }
    let root = if tree == "d1" { root.join("tree") } else { root.to_owned() };
    let files = shell::output(Command::new("find").arg(root).args(["-type", "f"]))?;
    let mut files: Vec<&str> = files.lines().collect();
    files.sort_unstable();
    for path in files.iter().step_by(100) {
        noise.file(Path::new(path), fs::metadata(path)?.len() as usize)?;
    }
    Ok(())
}
