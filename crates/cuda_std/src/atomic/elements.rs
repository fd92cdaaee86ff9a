//! Atomic operations as methods of the views.

#[cfg(not(target_arch = "nvptx64"))]
use super::emulated;
use super::{Order, Scope};
use crate::{GlobalMut, Shared};
#[cfg(target_arch = "nvptx64")]
use core::arch::asm;
use half::f16;
#[cfg(not(target_arch = "nvptx64"))]
use simt::Space;

/// `asm!` of `atom`, the order, the scope, `tail`.
#[cfg(target_arch = "nvptx64")]
macro_rules! atom {
    ($order:expr, $scope:expr, $tail:tt, $($operands:tt)+) => {
        match $order {
            Order::Relaxed => with_scope!($scope, ["atom.relaxed"], $tail, $($operands)+),
            Order::Acquire => with_scope!($scope, ["atom.acquire"], $tail, $($operands)+),
            Order::Release => with_scope!($scope, ["atom.release"], $tail, $($operands)+),
            Order::AcqRel => with_scope!($scope, ["atom.acq_rel"], $tail, $($operands)+),
        }
    };
}

/// Methods that replace the old value with `update(old, value)` and return the old value.
macro_rules! read_modify_write {
    (
        $view:ident<$element:ty>[$index:ty], $space:ident $suffix:literal,
        $address_register:ident $register:ident;
        $($(#[$meta:meta])* $name:ident $operation:literal $type:literal $update:expr;)+
    ) => { impl $view<$element> { $(
        $(#[$meta])*
        #[doc = ptx!("atom" as "atom", $suffix, $operation, $type)]
        ///
        /// # Safety
        /// 1. `index` is inside the memory of the view.
        /// 2. Threads that access the element at the same time do so by atomic operations of a
        ///    scope that includes all of them.
        #[inline(always)]
        #[track_caller]
        pub unsafe fn $name(
            self,
            index: $index,
            value: $element,
            order: Order,
            scope: Scope,
        ) -> $element {
            let address = self.address_of(index);
            #[cfg(target_arch = "nvptx64")]
            {
                let old;
                // SAFETY: the caller's promise.
                unsafe {
                    atom!(order, scope, [$suffix $operation $type " {old}, [{address}], {value};"],
                        old = out($register) old, address = in($address_register) address,
                        value = in($register) value, options(nostack, preserves_flags))
                }
                old
            }
            #[cfg(not(target_arch = "nvptx64"))]
            emulated::update((Space::$space, address as u64), (order, scope), |old| {
                Some($update(old, value))
            })
        }
    )+ } };
}

/// Loads, stores and compare-and-exchange of a word.
macro_rules! words {
    (
        $view:ident<$element:ty>[$index:ty], $space:ident $suffix:literal,
        $address_register:ident $register:ident; $type:literal
    ) => {
        impl $view<$element> {
            load!(
                /// Loads element `index` without ordering other accesses.
                load_relaxed, "ld.relaxed", Relaxed,
                $element, $index, $space $suffix, $address_register $register, $type
            );
            load!(
                /// Loads element `index`; the thread's later accesses come after those that were
                /// released there.
                load_acquire, "ld.acquire", Acquire,
                $element, $index, $space $suffix, $address_register $register, $type
            );
            store!(
                /// Stores element `index` without ordering other accesses.
                store_relaxed, "st.relaxed", Relaxed,
                $element, $index, $space $suffix, $address_register $register, $type
            );
            store!(
                /// Stores element `index`; the thread's earlier accesses come before those of a
                /// thread that acquires the value.
                store_release, "st.release", Release,
                $element, $index, $space $suffix, $address_register $register, $type
            );

            /// Replaces element `index` by `new` if it equals `current`, and returns the old value.
            /// CUDA C `atomicCAS`.
            #[doc = ptx!("atom" as "atom", $suffix, ".cas", $type)]
            ///
            /// # Safety
            /// 1. `index` is inside the memory of the view.
            /// 2. Threads that access the element at the same time do so by atomic operations of a
            ///    scope that includes all of them.
            ///
            /// # Errors
            /// The old value if it is not `current`.
            #[inline(always)]
            #[track_caller]
            pub unsafe fn compare_exchange(
                self,
                index: $index,
                (current, new): ($element, $element),
                order: Order,
                scope: Scope,
            ) -> Result<$element, $element> {
                let address = self.address_of(index);
                #[cfg(target_arch = "nvptx64")]
                let old = {
                    let old;
                    // SAFETY: the caller's promise.
                    unsafe {
                        atom!(order, scope,
                            [$suffix ".cas" $type " {old}, [{address}], {current}, {new};"],
                            old = out($register) old, address = in($address_register) address,
                            current = in($register) current, new = in($register) new,
                            options(nostack, preserves_flags))
                    }
                    old
                };
                #[cfg(not(target_arch = "nvptx64"))]
                let old =
                    emulated::update((Space::$space, address as u64), (order, scope), |old| {
                        (old == current).then_some(new)
                    });
                if old == current { Ok(old) } else { Err(old) }
            }
        }
    };
}

macro_rules! load {
    (
        $(#[$meta:meta])* $name:ident, $instruction:tt, $order:ident, $element:ty, $index:ty,
        $space:ident $suffix:literal, $address_register:ident $register:ident, $type:literal
    ) => {
        $(#[$meta])*
        #[doc = ptx!($instruction as $instruction, $suffix, $type)]
        ///
        /// # Safety
        /// 1. `index` is inside the memory of the view.
        /// 2. Threads that write the element at the same time do so by atomic operations of a scope
        ///    that includes all of them.
        #[inline(always)]
        #[track_caller]
        pub unsafe fn $name(self, index: $index, scope: Scope) -> $element {
            let address = self.address_of(index);
            #[cfg(target_arch = "nvptx64")]
            {
                let value;
                // SAFETY: the caller's promise.
                unsafe {
                    with_scope!(scope, [$instruction], [$suffix $type " {value}, [{address}];"],
                        value = out($register) value, address = in($address_register) address,
                        options(nostack, preserves_flags))
                }
                value
            }
            #[cfg(not(target_arch = "nvptx64"))]
            emulated::update((Space::$space, address as u64), (Order::$order, scope), |_| None)
        }
    };
}

macro_rules! store {
    (
        $(#[$meta:meta])* $name:ident, $instruction:tt, $order:ident, $element:ty, $index:ty,
        $space:ident $suffix:literal, $address_register:ident $register:ident, $type:literal
    ) => {
        $(#[$meta])*
        #[doc = ptx!($instruction as $instruction, $suffix, $type)]
        ///
        /// # Safety
        /// 1. `index` is inside the memory of the view.
        /// 2. Threads that access the element at the same time do so by atomic operations of a
        ///    scope that includes all of them.
        #[inline(always)]
        #[track_caller]
        pub unsafe fn $name(self, index: $index, value: $element, scope: Scope) {
            let address = self.address_of(index);
            #[cfg(target_arch = "nvptx64")]
            // SAFETY: the caller's promise.
            unsafe {
                with_scope!(scope, [$instruction], [$suffix $type " [{address}], {value};"],
                    address = in($address_register) address, value = in($register) value,
                    options(nostack, preserves_flags))
            }
            #[cfg(not(target_arch = "nvptx64"))]
            {
                let order = (Order::$order, scope);
                let update = |_: $element| Some(value);
                emulated::update((Space::$space, address as u64), order, update);
            }
        }
    };
}

/// All atomic operations of an integer.
macro_rules! integers {
    (
        $view:ident<$element:ty>[$index:ty], $space:ident $suffix:literal,
        $address_register:ident $register:ident; $arithmetic:literal $bits:literal
    ) => {
        read_modify_write! {
            $view<$element>[$index], $space $suffix, $address_register $register;
            /// Adds `value` to element `index`, wrapping around, and returns the old value. CUDA C
            /// `atomicAdd`.
            fetch_add ".add" $arithmetic <$element>::wrapping_add;
            /// Stores the minimum of element `index` and `value`, and returns the old value. CUDA C
            /// `atomicMin`.
            fetch_min ".min" $arithmetic <$element>::min;
            /// Stores the maximum of element `index` and `value`, and returns the old value. CUDA C
            /// `atomicMax`.
            fetch_max ".max" $arithmetic <$element>::max;
            /// Stores the bitwise and of element `index` and `value`, and returns the old value.
            /// CUDA C `atomicAnd`.
            fetch_and ".and" $bits |old: $element, value: $element| old & value;
            /// Stores the bitwise or of element `index` and `value`, and returns the old value.
            /// CUDA C `atomicOr`.
            fetch_or ".or" $bits |old: $element, value: $element| old | value;
            /// Stores the bitwise exclusive or of element `index` and `value`, and returns the old
            /// value. CUDA C `atomicXor`.
            fetch_xor ".xor" $bits |old: $element, value: $element| old ^ value;
            /// Stores `value` in element `index` and returns the old value. CUDA C `atomicExch`.
            swap ".exch" $bits |_: $element, value: $element| value;
        }
        words!($view<$element>[$index], $space $suffix, $address_register $register; $bits);
    };
}

integers!(GlobalMut<u32>[usize], Global ".global", reg64 reg32; ".u32" ".b32");
integers!(GlobalMut<i32>[usize], Global ".global", reg64 reg32; ".s32" ".b32");
integers!(GlobalMut<u64>[usize], Global ".global", reg64 reg64; ".u64" ".b64");
integers!(Shared<u32>[u32], Shared ".shared", reg32 reg32; ".u32" ".b32");
integers!(Shared<i32>[u32], Shared ".shared", reg32 reg32; ".s32" ".b32");

read_modify_write! {
    GlobalMut<f32>[usize], Global ".global", reg64 reg32;
    /// Adds `value` to element `index`, rounded to nearest, subnormal numbers flushed to zero, and
    /// returns the old value. CUDA C `atomicAdd`.
    fetch_add ".add" ".f32" emulated::add_flushed;
}

read_modify_write! {
    Shared<f32>[u32], Shared ".shared", reg32 reg32;
    /// Adds `value` to element `index`, rounded to nearest, and returns the old value. CUDA C
    /// `atomicAdd`.
    fetch_add ".add" ".f32" emulated::add;
}

/// [`fetch_add`](Self::fetch_add) of two f16.
macro_rules! add_f16x2 {
    ($view:ident<f16>[$index:ty], $space:ident $suffix:literal, $address_register:ident) => {
        impl $view<f16> {
            /// Adds `values` to the elements `index` and `index + 1`, which are 4-byte aligned, and
            /// returns the old values. Each sum is rounded to nearest, subnormal numbers are kept.
            /// CUDA C `atomicAdd` of a `__half2`.
            ///
            /// Each element is updated atomically, not the pair.
            #[doc = ptx!("atom" as "atom", $suffix, ".add.noftz.f16x2")]
            ///
            /// # Safety
            /// 1. The elements are inside the memory of the view, and 4-byte aligned.
            /// 2. Threads that access them at the same time do so by atomic operations of a scope
            ///    that includes all of them.
            #[inline(always)]
            #[track_caller]
            pub unsafe fn fetch_add_x2(
                self,
                index: $index,
                values: [f16; 2],
                order: Order,
                scope: Scope,
            ) -> [f16; 2] {
                let address = self.address_of(index);
                let [low, high] = values.map(|value| u32::from(value.to_bits()));
                let values = low | high << 16;
                let old: u32;
                #[cfg(target_arch = "nvptx64")]
                // SAFETY: the caller's promise.
                unsafe {
                    atom!(order, scope, [$suffix ".add.noftz.f16x2 {old}, [{address}], {values};"],
                        old = out(reg32) old, address = in($address_register) address,
                        values = in(reg32) values, options(nostack, preserves_flags))
                }
                #[cfg(not(target_arch = "nvptx64"))]
                {
                    let place = (Space::$space, address as u64);
                    let add = |old| Some(emulated::add_f16x2(old, values));
                    old = emulated::update(place, (order, scope), add);
                }
                [old, old >> 16].map(|half| f16::from_bits(half as u16))
            }
        }
    };
}

add_f16x2!(GlobalMut<f16>[usize], Global ".global", reg64);
add_f16x2!(Shared<f16>[u32], Shared ".shared", reg32);

impl<T: Copy> GlobalMut<T> {
    #[inline(always)]
    fn address_of(self, index: usize) -> *mut T {
        self.as_ptr().wrapping_add(index)
    }
}

impl<T: Copy> Shared<T> {
    #[inline(always)]
    fn address_of(self, index: u32) -> u32 {
        self.element(index)
    }
}
