// As little as a kernel can do and still be seen to have run: one addition by one thread.

extern "C" __global__ void add_one(const int* from, int* to) {
    *to = *from + 1;
}

// The same with more arguments: numbers that add up to one.
using Number = long long;

extern "C" __global__ void add_one_5(const int* from, int* to, Number a, Number b, Number c) {
    *to = *from + static_cast<int>(a + b + c);
}

extern "C" __global__ void add_one_19(
    const int* from, int* to, Number a, Number b, Number c, Number d, Number e, Number f, Number g,
    Number h, Number i, Number j, Number k, Number l, Number m, Number n, Number o, Number p,
    Number q) {
    const Number sum = a + b + c + d + e + f + g + h + i + j + k + l + m + n + o + p + q;
    *to = *from + static_cast<int>(sum);
}
