! LU factorisation and solution in the form of LINPACK's dgefa and dgesl: partial pivoting,
! column oriented, all work in idamax, dscal and daxpy. Written from the algorithm (Dongarra et al.,
! LINPACK Users' Guide, 1979), called from linpack.c.
module linpack
  use, intrinsic :: iso_c_binding, only: c_double, c_int
  implicit none
  private
  public :: nm_dgefa, nm_dgesl

contains

  ! y := y + alpha*x
  subroutine daxpy(n, alpha, x, y)
    integer, intent(in) :: n
    real(c_double), intent(in) :: alpha, x(n)
    real(c_double), intent(inout) :: y(n)
    integer :: i
    if (alpha == 0.0_c_double) return
    do i = 1, n
      y(i) = y(i) + alpha * x(i)
    end do
  end subroutine daxpy

  ! x := alpha*x
  subroutine dscal(n, alpha, x)
    integer, intent(in) :: n
    real(c_double), intent(in) :: alpha
    real(c_double), intent(inout) :: x(n)
    integer :: i
    do i = 1, n
      x(i) = alpha * x(i)
    end do
  end subroutine dscal

  ! The index of the element of largest magnitude, the first of equals.
  integer function idamax(n, x)
    integer, intent(in) :: n
    real(c_double), intent(in) :: x(n)
    real(c_double) :: largest
    integer :: i
    idamax = 1
    largest = abs(x(1))
    do i = 2, n
      if (abs(x(i)) > largest) then
        idamax = i
        largest = abs(x(i))
      end if
    end do
  end function idamax

  ! Factor a (n by n, leading dimension lda) in place into L (negated multipliers) and U.
  ! ipvt(k) is the pivot row of step k; info is 0, or the index of a zero pivot.
  subroutine nm_dgefa(a, lda, n, ipvt, info) bind(c)
    integer(c_int), value, intent(in) :: lda, n
    real(c_double), intent(inout) :: a(lda, n)
    integer(c_int), intent(out) :: ipvt(n), info
    real(c_double) :: t
    integer :: j, k, l
    info = 0
    do k = 1, n - 1
      l = idamax(n - k + 1, a(k:n, k)) + k - 1
      ipvt(k) = l
      if (a(l, k) == 0.0_c_double) then
        info = k
        cycle
      end if
      if (l /= k) then
        t = a(l, k)
        a(l, k) = a(k, k)
        a(k, k) = t
      end if
      call dscal(n - k, -1.0_c_double / a(k, k), a(k + 1:n, k))
      do j = k + 1, n
        t = a(l, j)
        if (l /= k) then
          a(l, j) = a(k, j)
          a(k, j) = t
        end if
        call daxpy(n - k, t, a(k + 1:n, k), a(k + 1:n, j))
      end do
    end do
    ipvt(n) = n
    if (a(n, n) == 0.0_c_double) info = n
  end subroutine nm_dgefa

  ! Solve a*x = b with the factors of nm_dgefa; b becomes x.
  subroutine nm_dgesl(a, lda, n, ipvt, b) bind(c)
    integer(c_int), value, intent(in) :: lda, n
    real(c_double), intent(in) :: a(lda, n)
    integer(c_int), intent(in) :: ipvt(n)
    real(c_double), intent(inout) :: b(n)
    real(c_double) :: t
    integer :: k, l
    do k = 1, n - 1
      l = ipvt(k)
      t = b(l)
      if (l /= k) then
        b(l) = b(k)
        b(k) = t
      end if
      call daxpy(n - k, t, a(k + 1:n, k), b(k + 1:n))
    end do
    do k = n, 1, -1
      b(k) = b(k) / a(k, k)
      call daxpy(k - 1, -b(k), a(1:k - 1, k), b(1:k - 1))
    end do
  end subroutine nm_dgesl

end module linpack
