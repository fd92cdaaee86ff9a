//! Atomic operations on the host, by the emulator's atomic accesses of 32 and 64 bits.

use super::{Order, Scope};
use half::f16;
use simt::{Space, device};

impl From<Order> for device::Order {
    fn from(order: Order) -> Self {
        match order {
            Order::Relaxed => device::Order::Relaxed,
            Order::Acquire => device::Order::Acquire,
            Order::Release => device::Order::Release,
            Order::AcqRel => device::Order::AcqRel,
        }
    }
}

impl From<Scope> for device::Scope {
    fn from(scope: Scope) -> Self {
        match scope {
            Scope::Block => device::Scope::Block,
            Scope::Cluster => device::Scope::Cluster,
            Scope::Gpu => device::Scope::Gpu,
            Scope::System => device::Scope::System,
        }
    }
}

/// A number that fits one register.
pub(super) trait Word: Copy {
    fn to_bits(self) -> u64;
    fn from_bits(bits: u64) -> Self;
}

macro_rules! word {
    ($($type:ty: $to_bits:expr, $from_bits:expr;)*) => { $(
        impl Word for $type {
            fn to_bits(self) -> u64 {
                $to_bits(self)
            }

            fn from_bits(bits: u64) -> Self {
                $from_bits(bits)
            }
        }
    )* };
}

word! {
    u32: u64::from, |bits| bits as u32;
    i32: |value| u64::from(value as u32), |bits| bits as i32;
    u64: |value| value, |bits| bits;
    f32: |value| u64::from(f32::to_bits(value)), |bits| f32::from_bits(bits as u32);
}

/// One atomic operation: `new` returns the value that replaces the old one, if any.
#[track_caller]
pub(super) fn update<T: Word>(
    place: (Space, u64),
    (order, scope): (Order, Scope),
    new: impl FnOnce(T) -> Option<T>,
) -> T {
    let new = |old| new(T::from_bits(old)).map(T::to_bits);
    T::from_bits(device::atomic(place, size_of::<T>(), (order.into(), scope.into()), new))
}

/// The sum; NaN is the device's canonical NaN.
pub(super) fn add(old: f32, value: f32) -> f32 {
    let sum = old + value;
    if sum.is_nan() { f32::from_bits(0x7fff_ffff) } else { sum }
}

/// The sum with subnormal operands and results flushed to zeros of their sign.
pub(super) fn add_flushed(old: f32, value: f32) -> f32 {
    let flush = |value: f32| if value.is_subnormal() { 0f32.copysign(value) } else { value };
    flush(add(flush(old), flush(value)))
}

/// The sums of two pairs of f16.
pub(super) fn add_f16x2(old: u32, values: u32) -> u32 {
    let add = |shift: u32| {
        let [a, b] = [old, values].map(|pair| f16::from_bits((pair >> shift) as u16).to_f32());
        let sum = a + b;
        // f32 has more than twice the digits of f16, so that rounding twice equals rounding once.
        let sum = if sum.is_nan() { 0x7fff } else { f16::from_f32(sum).to_bits() };
        u32::from(sum) << shift
    };
    add(0) | add(16)
}
