//! Several GPUs that share a model: an executor of each, whose graphs meet in the collective operations.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::device::{check, failed, make_current};
use super::{CudaExecutor, Placed, RankAddresses};
use crate::exec::prepared::Prepared;
use crate::exec::{
    AfterOp, ExecError, Executor, GpuOptions, PreparedPlan, StepOutput, StepTimes, Want,
    WeightSource,
};
use crate::plan::{MemoryUse, Plan, StepInputs};

/// Held while the ranks of an executor work. Kernels of one rank wait for those of another, which have to start: a second executor
/// could keep them from it, by a queue that is in front of theirs or a call of the driver that waits for all kernels.
static WORKING: Mutex<()> = Mutex::new(());

fn working() -> MutexGuard<'static, ()> {
    WORKING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs plans on several CUDA devices of one host, a rank on each.
pub struct CudaRanks {
    ranks: Vec<CudaExecutor>,
    /// The plans of all ranks.
    prepared: Prepared<Vec<PreparedPlan>>,
}

impl CudaRanks {
    /// Opens the devices from `cuda:<first>` on, one for each of `plans`, and copies its weights there.
    ///
    /// # Errors
    /// As [`CudaExecutor::open`]; [`ExecError::NoDevice`] for devices of different capabilities, and where one has no access to
    /// another's memory.
    pub fn open(
        first: usize,
        options: &GpuOptions,
        plans: &[Plan],
        weights: &dyn WeightSource,
    ) -> Result<Self, ExecError> {
        let _working = working();
        let open = |(index, plan)| CudaExecutor::open(first + index, options, plan, weights);
        let ranks = plans.iter().enumerate().map(open).collect::<Result<Vec<_>, _>>()?;
        let differs = |rank: &&CudaExecutor| rank.device.capability != ranks[0].device.capability;
        if let Some(other) = ranks.iter().find(differs) {
            let of = |rank: &CudaExecutor| {
                format!("cuda:{} ({})", rank.device.ordinal, rank.device.capability)
            };
            return Err(ExecError::NoDevice(format!(
                "{} and {} differ in compute capability: they cannot share a model",
                of(&ranks[0]),
                of(other)
            )));
        }
        for rank in &ranks {
            for peer in ranks.iter().filter(|peer| peer.device.ordinal != rank.device.ordinal) {
                enable_access(rank, peer)?;
            }
        }
        // The workspaces are zeroed before any rank uses another's.
        ranks.iter().try_for_each(|rank| {
            make_current(rank.context)?;
            rank.stream.synchronize().map_err(failed("opening the devices"))
        })?;
        Ok(CudaRanks { ranks, prepared: Prepared::new() })
    }

    /// As [`CudaExecutor::without_overlap`].
    #[must_use]
    pub fn without_overlap(mut self) -> Self {
        let ranks = std::mem::take(&mut self.ranks).into_iter();
        self.ranks = ranks.map(CudaExecutor::without_overlap).collect();
        self
    }
}

impl Drop for CudaRanks {
    fn drop(&mut self) {
        let _working = working();
        self.ranks.clear();
    }
}

impl Executor for CudaRanks {
    fn describe(&self) -> String {
        format!("{} x {}", self.ranks.len(), self.ranks[0].describe())
    }

    fn prepares_ahead(&self) -> bool {
        true
    }

    fn prepare_ranks(&mut self, plans: &[Plan]) -> Result<PreparedPlan, ExecError> {
        let _working = working();
        let placed = self.ranks.iter().zip(plans).map(|(rank, plan)| rank.place(plan));
        let mut placed = placed.collect::<Result<Vec<Placed>, _>>()?;
        let of_rank = |(placed, rank): (&Placed, &CudaExecutor)| RankAddresses {
            workspace: rank.memory.rank_workspace.address(),
            tensors: placed.addresses.tensors.clone(),
        };
        let ranks: Vec<_> = placed.iter().zip(&self.ranks).map(of_rank).collect();
        placed.iter_mut().for_each(|placed| placed.addresses.ranks.clone_from(&ranks));
        let captured = self.ranks.iter_mut().zip(placed).map(|(rank, placed)| rank.capture(placed));
        let captured = captured.collect::<Result<_, _>>()?;
        Ok(self.prepared.push(captured))
    }

    /// Each rank gets the inputs; the first one gives the output.
    fn run_while(
        &mut self,
        plan: PreparedPlan,
        inputs: &StepInputs,
        want: Want<'_>,
        meanwhile: &mut dyn FnMut(),
    ) -> Result<StepOutput, ExecError> {
        let _working = working();
        let wants = std::iter::once(want).chain(std::iter::repeat(Want::Nothing));
        let ranks = self.ranks.iter_mut().zip(self.prepared.get(plan)?).zip(wants);
        let started: Vec<_> =
            ranks.map(|((rank, &plan), want)| rank.start(plan, inputs, want)).collect();
        // A panic comes after the wait too.
        let panicked = catch_unwind(AssertUnwindSafe(meanwhile)).err();
        let outputs = self.ranks.iter_mut().zip(started);
        // All are waited for, whatever one of them returns.
        let outputs: Vec<_> = outputs.map(|(rank, started)| rank.finish(started)).collect();
        if let Some(panic) = panicked {
            resume_unwind(panic);
        }
        let outputs = outputs.into_iter().collect::<Result<Vec<_>, _>>()?;
        Ok(outputs.into_iter().next().unwrap_or_default())
    }

    fn plan(&self, plan: PreparedPlan) -> Result<&Plan, ExecError> {
        self.ranks[0].plan(self.prepared.get(plan)?[0])
    }

    /// In a thread each: the ranks meet in an operation.
    fn run_ops(
        &mut self,
        plan: PreparedPlan,
        inputs: &StepInputs,
        after: &mut AfterOp<'_>,
    ) -> Result<(), ExecError> {
        let _working = working();
        let mut ranks = self.ranks.iter_mut().zip(self.prepared.get(plan)?);
        let first = ranks.next();
        std::thread::scope(|scope| {
            let threads: Vec<_> = ranks
                .map(|(rank, &plan)| {
                    scope.spawn(move || rank.run_ops(plan, inputs, &mut |_, _| Ok(())))
                })
                .collect();
            let mut result =
                first.map_or(Ok(()), |(rank, &plan)| rank.run_ops(plan, inputs, after));
            for thread in threads {
                result = result.and(thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
            }
            result
        })
    }

    fn time_ops(
        &mut self,
        _: PreparedPlan,
        _: &StepInputs,
        _: usize,
    ) -> Result<StepTimes, ExecError> {
        Err(ExecError::Unsupported {
            op: "timing operations".to_owned(),
            why: "several GPUs, which wait for each other: choose one".to_owned(),
        })
    }

    /// Of the rank that takes most.
    fn memory_use(&self) -> Result<MemoryUse, ExecError> {
        let uses = self.ranks.iter().map(CudaExecutor::memory_use);
        let uses = uses.collect::<Result<Vec<_>, _>>()?;
        Ok(uses.into_iter().max_by_key(MemoryUse::total_bytes).unwrap_or_default())
    }
}

/// Lets kernels of `rank` access the memory of `peer`.
fn enable_access(rank: &CudaExecutor, peer: &CudaExecutor) -> Result<(), ExecError> {
    let [of, to] = [rank, peer].map(|rank| rank.device.ordinal);
    let mut can_access = 0;
    // SAFETY: both are numbers of devices.
    let code = unsafe { cust::sys::cuDeviceCanAccessPeer(&mut can_access, of as i32, to as i32) };
    check("cuDeviceCanAccessPeer", code)?;
    if can_access == 0 {
        return Err(ExecError::NoDevice(format!(
            "cuda:{of} cannot access the memory of cuda:{to}: they cannot share a model"
        )));
    }
    make_current(rank.context)?;
    // SAFETY: the peer's context lives as long as the process.
    let code = unsafe { cust::sys::cuCtxEnablePeerAccess(peer.context.as_raw(), 0) };
    match code {
        cust::sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
        code => check("cuCtxEnablePeerAccess", code),
    }
}
