//! What the fuzz target and the fuzz test do with their bytes.

use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

static FILE: LazyLock<PathBuf> =
    LazyLock::new(|| std::env::temp_dir().join(format!("kura-fuzz-trace-{}", std::process::id())));

/// `data` is what a file holds: it is read as a trace, or refused in one line. How many requests it has, or why not.
pub fn read(data: &[u8]) -> Result<usize, String> {
    fs::write(&*FILE, data).expect("the file is written");
    let (mut requests, mut last_ns) = (0, 0);
    let read = kura_trace::open(&FILE).and_then(|reader| {
        for request in reader {
            let request = request?;
            assert!(last_ns <= request.at_ns && i64::try_from(request.end_bytes()).is_ok());
            (requests, last_ns) = (requests + 1, request.at_ns);
        }
        Ok(())
    });
    let refusal = read.err().map(|refusal| refusal.to_string());
    fs::remove_file(&*FILE).expect("the file is removed");
    match refusal {
        None => Ok(requests),
        Some(refusal) => {
            assert!(!refusal.contains('\n') && refusal.contains("; "), "{refusal}");
            Err(refusal)
        }
    }
}

/// A trace of two requests in each form.
pub fn seeds() -> Vec<Vec<u8>> {
    let texts = [
        "128166372003061629,web,0,Read,7014609920,24576,41286\n128166372016382155,web,0,Write,1317441536,8192,1963\n",
        "  8,0    0        3     0.000000000   100  Q   R 2048 + 8 [kura]\n\
         \x20 8,0    1        1     0.000500200   100  C   R 2048 + 8 [0]\n\
         \x20 8,0    1        2     0.000600000   100  Q  WS 4096 + 16 [kura]\nCPU0 (t):\n Reads Queued: 1, 4KiB\n",
        "fio version 3 iolog\n33 /dev/sdb add\n195 /dev/sdb read 61440 4096\n490 /dev/sdb write 774144 4096\n",
        "fio version 2 iolog\n/dev/sdb add\n/dev/sdb read 61440 4096\n/dev/sdb wait 250 0\n/dev/sdb trim 0 65536\n",
    ];
    let mut records = Vec::new();
    for (time, sector, action) in [(1_u64, 2048_u64, 1_u32 << 16 | 1), (500, 2048, 1 << 16 | 8), (900, 8, 1 << 17 | 1)]
    {
        records.extend([0x6561_7407_u32, 1].map(u32::to_le_bytes).concat());
        records.extend([time, sector].map(u64::to_le_bytes).concat());
        records.extend([4096, action, 100, 8 << 20, 0, 0].map(u32::to_le_bytes).concat());
    }
    texts.iter().map(|text| text.as_bytes().to_vec()).chain([records]).collect()
}
