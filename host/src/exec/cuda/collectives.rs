//! How GPUs that share a model meet: in each other's memory, or by NCCL.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use cuda_loader::nccl::{Communicator, Nccl};
use cust::context::Context;

use super::CudaExecutor;
use super::device::{self, by_nccl, check, devices, make_current};
use crate::exec::lower::{self, Libraries};
use crate::exec::{Collectives, ExecError, GpuOptions};
use crate::plan::{Dtype, Plan};

/// The longest that ranks wait for each other on the host.
pub(super) const LIMIT: Duration = Duration::from_secs(30);

/// What libraries do for the ranks of `plan` on the devices `cuda:<ordinal>`.
///
/// # Errors
/// [`ExecError::NoDevice`], [`ExecError::Unsupported`] and [`ExecError::Ranks`] if the devices are not there, or cannot meet as
/// `options` say.
pub(super) fn libraries(
    options: &GpuOptions,
    ordinals: &[usize],
    plan: &Plan,
) -> Result<Libraries, ExecError> {
    let devices = devices()?;
    for &ordinal in ordinals {
        device::choose(&devices, ordinal, options.target)?;
    }
    let nccl = !plan.rank.is_alone()
        && by_choice(options.collectives, own_can(ordinals, plan), || nccl_can(plan))?;
    Ok(Libraries { gemm: options.gemm, nccl })
}

/// Whether NCCL is taken, where `own` kernels can meet and NCCL can, or why not.
fn by_choice(
    collectives: Collectives,
    own: Result<(), ExecError>,
    nccl: impl FnOnce() -> Result<(), ExecError>,
) -> Result<bool, ExecError> {
    match (collectives, own) {
        (Collectives::Halfwarp, own) => own.map(|()| false),
        (Collectives::Nccl, _) => nccl().map(|()| true),
        (Collectives::Auto, Ok(())) => Ok(false),
        (Collectives::Auto, Err(why)) => match nccl() {
            Ok(()) => Ok(true),
            Err(nccl) => {
                let nccl = nccl.to_string();
                let nccl = nccl.lines().next().unwrap_or_default();
                Err(ExecError::NoDevice(format!("{why}\nNCCL could, but: {nccl}")))
            }
        },
    }
}

/// Whether kernels of ours can add over the ranks of `plan`.
fn own_can(ordinals: &[usize], plan: &Plan) -> Result<(), ExecError> {
    lower::rank_workspace_bytes(plan)?;
    if lower::summed_dtype(plan) == Some(Dtype::F32) {
        return Err(lower::only_16_bits());
    }
    let peers = |&of: &usize| ordinals.iter().map(move |&to| (of, to)).filter(|(of, to)| of != to);
    ordinals.iter().flat_map(peers).try_for_each(|(of, to)| check_access(of, to))
}

/// Whether NCCL can.
fn nccl_can(plan: &Plan) -> Result<(), ExecError> {
    if plan.numerics().batch_invariant {
        let why =
            "NCCL adds in another order for another number of rows: it is not batch-invariant";
        return Err(ExecError::Ranks(why.to_owned()));
    }
    Nccl::open().map(|_| ()).map_err(|error| ExecError::NoDevice(error.to_string()))
}

fn check_access(of: usize, to: usize) -> Result<(), ExecError> {
    let mut can_access = 0;
    // SAFETY: both are numbers of devices.
    let code = unsafe { cust::sys::cuDeviceCanAccessPeer(&mut can_access, of as i32, to as i32) };
    check("cuDeviceCanAccessPeer", code)?;
    match can_access {
        0 => Err(ExecError::NoDevice(format!("cuda:{of} cannot access the memory of cuda:{to}"))),
        _ => Ok(()),
    }
}

/// Lets kernels of `rank` access the memory of `peer`.
pub(super) fn enable_access(rank: &CudaExecutor, peer: &CudaExecutor) -> Result<(), ExecError> {
    make_current(rank.context)?;
    // SAFETY: the peer's context lives as long as the process.
    let code = unsafe { cust::sys::cuCtxEnablePeerAccess(peer.context.as_raw(), 0) };
    match code {
        cust::sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
        code => check("cuCtxEnablePeerAccess", code),
    }
}

/// A communicator for each of `ranks`.
pub(super) fn connect(ranks: &[CudaExecutor]) -> Result<Vec<Arc<Communicator>>, ExecError> {
    let nccl = Nccl::open().map_err(by_nccl)?;
    let id = nccl.unique_id().map_err(by_nccl)?;
    let (nccl, world) = (&nccl, ranks.len() as u32);
    let join = |(index, context): (usize, &Context)| {
        make_current(context)?;
        // SAFETY: the rank's primary context is current; ranks have numbers and GPUs of their own.
        let joined = unsafe { nccl.communicator(&id, index as u32, world, LIMIT) };
        let communicator = joined.map_err(by_nccl)?;
        communicator.wait().map_err(by_nccl)?;
        Ok(Arc::new(communicator))
    };
    in_threads(ranks.iter().map(|rank| rank.context).enumerate(), join)
}

/// Ends what NCCL does on any of the GPUs, for which `end_graphs` is called meanwhile: aborting waits for the graphs'
/// end, and the graphs for NCCL's.
pub(super) fn abort(communicators: Vec<Arc<Communicator>>, end_graphs: impl FnOnce()) {
    thread::scope(|scope| {
        for communicator in &communicators {
            // The error that led here is the one to report.
            scope.spawn(|| communicator.abort().ok());
        }
        end_graphs();
    });
}

/// Frees `communicators`, whose graphs are destroyed: side by side, as each waits for the others.
pub(super) fn close(communicators: Vec<Arc<Communicator>>) {
    thread::scope(|scope| {
        for communicator in communicators {
            scope.spawn(move || drop(communicator));
        }
    });
}

/// `run` of each rank in a thread of its own, and all results, or the first error.
pub(super) fn in_threads<R: Send, T: Send>(
    ranks: impl Iterator<Item = R>,
    run: impl Fn(R) -> Result<T, ExecError> + Sync,
) -> Result<Vec<T>, ExecError> {
    let run = &run;
    thread::scope(|scope| {
        let threads: Vec<_> = ranks.map(|rank| scope.spawn(move || run(rank))).collect();
        let ended = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        // All are joined before the first error is returned.
        let ended: Vec<_> = ended.collect();
        ended.into_iter().collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(why: &str) -> ExecError {
        ExecError::Ranks(why.to_owned())
    }

    #[test]
    fn nccl_is_taken_where_it_is_chosen_or_alone_can() {
        let choose = |collectives, own: bool, nccl: bool| {
            let can = |yes, why| if yes { Ok(()) } else { Err(ranks(why)) };
            by_choice(collectives, can(own, "no access"), || can(nccl, "no NCCL found\ninstall it"))
                .map_err(|error| error.to_string())
        };
        for nccl in [false, true] {
            assert_eq!(choose(Collectives::Auto, true, nccl), Ok(false));
            assert_eq!(choose(Collectives::Halfwarp, true, nccl), Ok(false));
            assert_eq!(choose(Collectives::Halfwarp, false, nccl), Err("no access".to_owned()));
        }
        for own in [false, true] {
            assert_eq!(choose(Collectives::Nccl, own, true), Ok(true));
            let error = choose(Collectives::Nccl, own, false).unwrap_err();
            assert!(error.starts_with("no NCCL found"), "{error}");
        }
        assert_eq!(choose(Collectives::Auto, false, true), Ok(true));
        let error = choose(Collectives::Auto, false, false).unwrap_err();
        assert_eq!(error, "no access\nNCCL could, but: no NCCL found");
    }
}
