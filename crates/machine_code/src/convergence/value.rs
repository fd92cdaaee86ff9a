//! What is known of a register: which of its bits may differ between threads, and which are zero.

/// What is known of a register's bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value {
    /// Bits that may differ between the threads of a group.
    pub differ: u64,
    /// Bits that are zero in all threads.
    pub zero: u64,
}

impl Value {
    /// Before any value is known to reach it.
    pub const NONE: Value = Value { differ: 0, zero: !0 };
    /// The same in all threads of a group.
    pub const UNIFORM: Value = Value { differ: 0, zero: 0 };
    pub const ANY: Value = Value { differ: !0, zero: 0 };

    pub fn constant(value: u64) -> Self {
        Value { differ: 0, zero: !value }
    }

    pub fn join(self, other: Value) -> Self {
        Value { differ: self.differ | other.differ, zero: self.zero & other.zero }
    }

    /// The lowest `bits`, above them zero.
    pub fn truncated(self, bits: u32) -> Self {
        let above = u64::MAX.checked_shl(bits).unwrap_or(0);
        Value { differ: self.differ & !above, zero: self.zero | above }
    }

    /// Each bit a function of the operands' bits in its place.
    pub fn bitwise(self, other: Value) -> Self {
        Value { differ: self.differ | other.differ, zero: self.zero & other.zero }
    }

    pub fn and(self, other: Value) -> Self {
        let zero = self.zero | other.zero;
        Value { differ: (self.differ | other.differ) & !zero, zero }
    }

    /// Below the first bit that may carry, bit by bit; from there on any, if the operands differ there.
    pub fn sum(self, other: Value) -> Self {
        let carry = (!self.zero & !other.zero).trailing_zeros();
        let above = u64::MAX.checked_shl(carry).unwrap_or(0);
        let differ = self.differ | other.differ;
        let first = (differ & above).trailing_zeros();
        let differ = differ & !above | u64::MAX.checked_shl(first).unwrap_or(0);
        Value { differ, zero: self.zero & other.zero & !above }
    }

    pub fn product(self, other: Value) -> Self {
        let zeros = self.zero.trailing_ones().saturating_add(other.zero.trailing_ones());
        let zero = !u64::MAX.checked_shl(zeros).unwrap_or(0);
        let differ = if self.differ | other.differ == 0 { 0 } else { !zero };
        Value { differ, zero }
    }

    pub fn shifted_left(self, by: u32) -> Self {
        let below = !u64::MAX.checked_shl(by).unwrap_or(0);
        let shift = |bits: u64| bits.checked_shl(by).unwrap_or(0);
        Value { differ: shift(self.differ), zero: shift(self.zero) | below }
    }

    pub fn shifted_right(self, by: u32) -> Self {
        let shift = |bits: u64| bits.checked_shr(by).unwrap_or(0);
        Value { differ: shift(self.differ), zero: !shift(!self.zero) }
    }
}
