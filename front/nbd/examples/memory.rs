//! Serves one volume in memory, to be measured: `memory ADDRESS SIZE_MIB`.

#[path = "../tests/it/memory.rs"]
mod memory;
#[path = "../tests/it/serve.rs"]
mod serve;

use kura_nbd::{Address, Limits, Tls};
use serve::Volume;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let address: Address = arguments.next().unwrap_or_else(|| "127.0.0.1:0".to_owned()).parse()?;
    let size_mib: u64 = arguments.next().map_or(Ok(1024), |size| size.parse())?;
    let volume = Volume { name: "memory", size_bytes: size_mib << 20, read_only: false };
    let running = serve::serve(&address, &[volume], Tls::Off, Limits::default())?;
    // The only output of a program that has nothing else to say.
    std::io::Write::write_all(&mut std::io::stdout(), format!("{}\n", running.address).as_bytes())?;
    std::thread::park();
    Ok(())
}
