//! All cases, one file per instruction group.

mod atomic;
mod barrier;
mod bulk;
mod cluster;
mod convert;
mod cp_async;
mod f16x2;
mod griddepcontrol;
mod math;
mod matrix;
mod mbarrier;
mod mma;
mod named_barrier;
mod ordering;
mod peer;
mod reduce;
mod registers;
mod setmaxnreg;
mod shuffle;
mod tensor;
mod vote;
mod wgmma;

use crate::Case;

/// All cases, with inputs and expected outputs.
pub fn all() -> Vec<Case> {
    let mut cases = vec![
        shuffle::case(),
        shuffle::up_and_down(),
        vote::votes(),
        vote::elections(),
        reduce::case(),
        barrier::case(),
        named_barrier::case(),
        ordering::semaphore(),
        ordering::last_block(),
        ordering::messages(),
        peer::lines(),
        peer::flags(),
        math::rounded(),
        math::approximate(),
        math::transcendental(),
        math::bits(),
        f16x2::f16_rounded(),
        f16x2::f16_approximate(),
        f16x2::bf16_rounded(),
        convert::to_16_bits(),
        convert::to_integers(),
        convert::f16_to_f32(),
        convert::to_fp8(),
        convert::fp8_to_f16(),
        matrix::load(),
        matrix::store(),
        cp_async::case(),
        mbarrier::ring(),
        mbarrier::phases(),
        cluster::places(),
        cluster::peers(),
        cluster::arrivals(),
        cluster::copies(),
        cluster::stores(),
        cluster::tensors(),
        setmaxnreg::case(),
        griddepcontrol::case(),
    ];
    cases.extend(registers::cases());
    cases.extend(atomic::cases());
    cases.extend(cp_async::with_mbarriers());
    cases.extend(bulk::cases());
    cases.extend(mbarrier::bytes());
    cases.extend(mma::cases());
    cases.extend(tensor::cases());
    cases.extend(wgmma::cases());
    cases
}
