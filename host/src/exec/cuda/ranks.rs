//! Several GPUs that share a model: an executor of each, whose graphs meet in the collective operations.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cuda_loader::nccl::{Communicator, Nccl};

use super::collectives::{self, connect, enable_access, in_threads, libraries};
use super::device::{failed, make_current};
use super::{CudaExecutor, Placed, RankAddresses, Started};
use crate::exec::prepared::Prepared;
use crate::exec::{
    AfterOp, ExecError, Executor, GpuOptions, NoQueue, PreparedPlan, StepOutput, StepQueue,
    StepTimes, Want, WeightSource,
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
    /// By rank, if NCCL adds.
    communicators: Vec<Arc<Communicator>>,
    /// Why nothing can run any more.
    failed: Option<String>,
}

impl CudaRanks {
    /// Opens the devices `cuda:<ordinal>`, one for each of `plans`, and copies its weights there.
    ///
    /// # Errors
    /// As [`CudaExecutor::open`]; [`ExecError::Ranks`] for devices that cannot meet as `options` say, [`ExecError::NoDevice`] for devices of different
    /// capabilities.
    pub fn open(
        ordinals: &[usize],
        options: &GpuOptions,
        plans: &[Plan],
        weights: &dyn WeightSource,
    ) -> Result<Self, ExecError> {
        let _working = working();
        let libraries = plans.first().map(|plan| libraries(options, ordinals, plan)).transpose()?;
        let libraries = libraries.unwrap_or_default();
        let open =
            |(&ordinal, plan)| CudaExecutor::open_rank(ordinal, libraries, options, plan, weights);
        let ranks = ordinals.iter().zip(plans).map(open).collect::<Result<Vec<_>, _>>()?;
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
        let communicators = if libraries.nccl {
            connect(&ranks)?
        } else {
            for rank in &ranks {
                for peer in ranks.iter().filter(|peer| peer.device.ordinal != rank.device.ordinal) {
                    enable_access(rank, peer)?;
                }
            }
            Vec::new()
        };
        // The workspaces are zeroed before any rank uses another's.
        ranks.iter().try_for_each(|rank| {
            make_current(rank.context)?;
            rank.stream.synchronize().map_err(failed("opening the devices"))
        })?;
        let mut ranks = CudaRanks { ranks, prepared: Prepared::new(), communicators, failed: None };
        for (rank, communicator) in ranks.ranks.iter_mut().zip(&ranks.communicators) {
            rank.communicator = Some(Arc::clone(communicator));
        }
        Ok(ranks)
    }

    /// As [`CudaExecutor::without_overlap`].
    #[must_use]
    pub fn without_overlap(mut self) -> Self {
        let ranks = std::mem::take(&mut self.ranks).into_iter();
        self.ranks = ranks.map(CudaExecutor::without_overlap).collect();
        self
    }

    fn check_alive(&self) -> Result<(), ExecError> {
        self.failed.clone().map_or(Ok(()), |why| Err(ExecError::RankFailed(why)))
    }

    /// `result` of ranks that work. After an error of one of them nothing can run any more: the others have waited for it.
    fn ended<T>(&mut self, result: Result<T, ExecError>) -> Result<T, ExecError> {
        let error = match result {
            Err(error @ (ExecError::Driver { .. } | ExecError::RankFailed(_))) => error,
            other => return other,
        };
        let ranks = &mut self.ranks;
        collectives::abort(std::mem::take(&mut self.communicators), || {
            for rank in ranks {
                rank.end_graphs();
            }
        });
        let why = format!("{error}\none of the GPUs that share the model has failed, or hangs");
        self.failed = Some(why.clone());
        Err(ExecError::RankFailed(why))
    }
}

/// What each rank copies back: the first one what is wanted.
fn by_rank(want: Want<'_>) -> impl Iterator<Item = Want<'_>> {
    std::iter::once(want).chain(std::iter::repeat(Want::Nothing))
}

/// The queues of all ranks, after the step that runs on them.
struct Behind<'a>(&'a mut CudaRanks, &'a [Result<Started, ExecError>]);

impl StepQueue for Behind<'_> {
    fn push(&mut self, plan: PreparedPlan, inputs: &StepInputs, want: Want<'_>) {
        let Behind(CudaRanks { ranks, prepared, .. }, started) = self;
        let plans = prepared.get(plan).into_iter().flatten();
        let ranks = ranks.iter_mut().zip(started.iter().flatten()).zip(plans).zip(by_rank(want));
        ranks.for_each(|(((rank, running), &plan), want)| rank.queue(plan, inputs, want, running));
    }
}

impl Drop for CudaRanks {
    fn drop(&mut self) {
        let _working = working();
        self.ranks.iter_mut().for_each(CudaExecutor::end_graphs);
        collectives::close(std::mem::take(&mut self.communicators));
        self.ranks.clear();
    }
}

impl Executor for CudaRanks {
    fn describe(&self) -> String {
        let by_nccl = match (&self.communicators[..], Nccl::open()) {
            ([_, ..], Ok(nccl)) => format!(", NCCL {}", nccl.version()),
            _ => String::new(),
        };
        format!("{} x {}{by_nccl}", self.ranks.len(), self.ranks[0].describe())
    }

    fn prepares_ahead(&self) -> bool {
        true
    }

    fn prepare_ranks(&mut self, plans: &[Plan]) -> Result<PreparedPlan, ExecError> {
        let _working = working();
        self.check_alive()?;
        let placed = self.ranks.iter().zip(plans).map(|(rank, plan)| rank.place(plan));
        let mut placed = placed.collect::<Result<Vec<Placed>, _>>()?;
        let of_rank = |(placed, rank): (&Placed, &CudaExecutor)| RankAddresses {
            workspace: rank.memory.rank_workspace.address(),
            tensors: placed.addresses.tensors.clone(),
        };
        let ranks: Vec<_> = placed.iter().zip(&self.ranks).map(of_rank).collect();
        placed.iter_mut().for_each(|placed| placed.addresses.ranks.clone_from(&ranks));
        let lowered = self.ranks.iter_mut().zip(placed).map(|(rank, placed)| rank.lower(placed));
        let lowered = lowered.collect::<Result<Vec<_>, _>>()?;
        let ranks = self.ranks.iter_mut().zip(lowered);
        let captured = in_threads(ranks, |(rank, lowered)| rank.capture(lowered));
        let captured = self.ended(captured)?;
        Ok(self.prepared.push(captured))
    }

    /// Each rank gets the inputs; the first one gives the output.
    fn run_while(
        &mut self,
        plan: PreparedPlan,
        inputs: &StepInputs,
        want: Want<'_>,
        meanwhile: &mut dyn FnMut(&mut dyn StepQueue),
    ) -> Result<StepOutput, ExecError> {
        let _working = working();
        self.check_alive()?;
        let ranks = self.ranks.iter_mut().zip(self.prepared.get(plan)?).zip(by_rank(want));
        let started: Vec<_> =
            ranks.map(|((rank, &plan), want)| rank.begin(plan, inputs, want)).collect();
        let can_queue =
            started.iter().all(|started| started.as_ref().is_ok_and(|it| it.num_logits == 0));
        let beside = || match can_queue {
            true => meanwhile(&mut Behind(self, &started)),
            false => meanwhile(&mut NoQueue),
        };
        // A panic comes after the wait too.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(beside)) {
            self.ranks.iter_mut().for_each(|rank| drop(rank.drain()));
            resume_unwind(panic);
        }
        let outputs = self.ranks.iter_mut().zip(started);
        // All are waited for, whatever one of them returns.
        let outputs: Vec<_> = outputs.map(|(rank, started)| rank.finish(started)).collect();
        let outputs = outputs.into_iter().collect::<Result<Vec<_>, _>>();
        Ok(self.ended(outputs)?.into_iter().next().unwrap_or_default())
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
        self.check_alive()?;
        let mut ranks = self.ranks.iter_mut().zip(self.prepared.get(plan)?);
        let first = ranks.next();
        let ran = std::thread::scope(|scope| {
            let others = scope.spawn(|| {
                in_threads(ranks, |(rank, &plan)| rank.run_ops(plan, inputs, &mut |_, _| Ok(())))
            });
            let first = first.map_or(Ok(()), |(rank, &plan)| rank.run_ops(plan, inputs, after));
            let others = others.join().unwrap_or_else(|panic| resume_unwind(panic));
            first.and(others.map(|_| ()))
        });
        self.ended(ran)
    }

    /// Times of the first rank; an operation in which the ranks meet includes the wait for the others.
    fn time_ops(
        &mut self,
        plan: PreparedPlan,
        inputs: &StepInputs,
        repeats: usize,
    ) -> Result<StepTimes, ExecError> {
        let _working = working();
        self.check_alive()?;
        let plans = self.prepared.get(plan)?;
        let ranks = self.ranks.iter_mut().zip(plans);
        let replays_us = in_threads(ranks, |(rank, &plan)| rank.warm_up(plan, inputs));
        // All ranks start as many replays.
        let times = replays_us.and_then(|replays_us| {
            let replay_us = replays_us.into_iter().fold(0.0, f64::max);
            let ranks = self.ranks.iter_mut().zip(plans);
            in_threads(ranks, |(rank, &plan)| {
                rank.time_ops_by_events(plan, inputs, repeats, replay_us)
            })
        });
        Ok(self.ended(times)?.into_iter().next().unwrap_or_default())
    }

    fn collect_ops(&mut self, _: PreparedPlan, _: &StepInputs) -> Result<Vec<usize>, ExecError> {
        let why = "several GPUs, whose kernels wait for each other: choose one";
        Err(ExecError::Unsupported { op: "counting".to_owned(), why: why.to_owned() })
    }

    /// Memory use of the rank that takes most.
    fn memory_use(&self) -> Result<MemoryUse, ExecError> {
        let uses = self.ranks.iter().map(CudaExecutor::memory_use);
        let uses = uses.collect::<Result<Vec<_>, _>>()?;
        Ok(uses.into_iter().max_by_key(MemoryUse::total_bytes).unwrap_or_default())
    }
}
