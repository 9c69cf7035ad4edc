//! What the small servers of this benchmark share: each is a process of its own that says where it
//! listens.

use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;

use anyhow::Result;
use tokio::net::{TcpListener, TcpStream};

/// Takes connections until the process is killed.
pub(crate) fn serve<F>(data: &Path, connection: impl Fn(TcpStream) -> F) -> Result<()>
where
    F: Future<Output = Result<()>> + Send + 'static,
{
    std::fs::create_dir_all(data)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        write_run_file(data, listener.local_addr()?)?;
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let served = connection(stream);
            tokio::spawn(async move {
                if let Err(error) = served.await {
                    eprintln!("a connection ended: {error:#}");
                }
            });
        }
    })
}

/// Says where this process listens, as the real server does.
fn write_run_file(data: &Path, address: SocketAddr) -> Result<()> {
    let run = serde_json::json!({
        "pid": std::process::id(), "url": format!("http://{address}"), "started_at": null,
    });
    let draft = data.join("statehold.run.new");
    std::fs::write(&draft, run.to_string())?;
    std::fs::rename(draft, data.join("statehold.run"))?;
    Ok(())
}
