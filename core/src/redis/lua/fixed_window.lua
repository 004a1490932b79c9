-- Fixed window: a counter that starts again with each window. The twin of
-- core/src/algorithm/fixed_window.rs.
--
-- The state is the end of the window, the count, and the period:
-- f <s> <n> <count> <period s> <period n>. The TTL ends with the window. A
-- window of another period that is still open is carried over as a count.
function kinds.f(key)
  local limit, period_s, period_n, anchor = number(), number(), number(), number()
  local state = words(call('GET', key), 'f')
  local left, end_s, end_n, count = 0, nil, nil, 0
  local is_open, is_changed = false, false

  local function end_after(at_s, at_n)
    if anchor == 2 then return month_end(at_s) end
    if anchor == 0 then return window_end(at_s, at_n, period_s, period_n) end
    local over = at_n + period_n
    return at_s + period_s + floor(over / 1e9), over % 1e9
  end

  if state then
    left, end_s, end_n = span(s, n, state[1], state[2]), state[1], state[2]
    if left > 0 then
      count, is_open = state[3], state[4] == period_s and state[5] == period_n
      is_changed = not is_open
      if is_changed and count > limit then count = limit end
    end
  end
  if not is_open then
    end_s, end_n = end_after(s, n)
    left = span(s, n, end_s, end_n)
  end

  local account = {}

  function account.left() return count < limit and limit - count or 0 end

  function account.fits(units) return units == 0 or count + units <= limit end

  function account.charge(units)
    count, is_changed = count + units, true
  end

  function account.back(units, then_s, then_n)
    local own_s, own_n = end_after(then_s, then_n)
    local gap = span(own_s, own_n, end_s, end_n)
    if is_open and (gap == 0 or gap < 0 and anchor == 1) then
      count, is_changed = count > units and count - units or 0, true
    end
  end

  function account.save()
    local ms = milliseconds(left)
    if is_changed then
      local text = ('f %d %d %d %d %d'):format(end_s, end_n, count, period_s, period_n)
      call('SET', key, text, 'PX', ('%d'):format(ms))
    else
      repair(key, ms)
    end
  end

  function account.tell(units, ok)
    local fits, wait = ok or account.fits(units), 0
    local micros = (end_s - s) * 1e6 + ceil(end_n - n, 1000)
    if not fits then wait = units > limit and -1 or micros end
    return fits, account.left(), wait, count == 0 and 0 or micros, 0
  end

  return account
end
