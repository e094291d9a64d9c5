-- SPDX-License-Identifier: GPL-2.0-or-later
-- Solutions of the n queens problem; each row tried is a new table.  Argument: n.
local n = tonumber(arg and arg[1]) or 6

local function safe(row, column, placed)
  local r = row
  while placed do
    r = r - 1
    local c = placed.column
    if c == column or c - column == row - r or column - c == row - r then return false end
    placed = placed.up
  end
  return true
end

local solutions, tried = 0, 0
local function place(row, placed)
  if row > n then solutions = solutions + 1 return end
  for column = 1, n do
    tried = tried + 1
    if safe(row, column, placed) then place(row + 1, {column = column, up = placed}) end
  end
end

place(1)
print(n, solutions, tried)
