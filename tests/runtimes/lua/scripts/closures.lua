-- SPDX-License-Identifier: GPL-2.0-or-later
-- Closures, upvalues, code that is compiled, dumped and loaded while cycles run.
local function make(n)
  local value = {n}
  return function() return value end, function(v) value = v end
end
local fs = {}
for i = 1, 2000 do fs[i] = {make(i)} end
for round = 1, 10 do
  for i, f in ipairs(fs) do f[2]({f[1]()[1] + 1, string.rep("x", i % 50)}) end
end
local sum = 0
for _, f in ipairs(fs) do sum = sum + f[1]()[1] end
print(sum)

-- shared and joined upvalues
local a, b = make(1), make(2)
debug.upvaluejoin(a, 1, b, 1)
print(a()[1], debug.upvalueid(a, 1) == debug.upvalueid(b, 1))
debug.setupvalue(a, 1, {77})
print(b()[1], (debug.getupvalue(a, 1)))

-- compiling much, with constants, nested functions, long strings
local parts = {}
for i = 1, 300 do
  parts[#parts + 1] = ("local function f%d(x) local t = {%d, 'name%d', %d.5} return function(y) return t[1] + x + y end end  r[%d] = f%d(%d)(1)")
    :format(i % 150, i, i, i, i, i % 150, i)
end
local chunk = {}
for i = 1, 300 do chunk[#chunk + 1] = "do " .. parts[i] .. " end " end
local source = "local r = {} " .. table.concat(chunk, "\n") .. " return r"
for round = 1, 5 do
  local r = assert(load(source))()
  assert(r[300] == 601 and r[1] == 3)
end
local f = load(string.dump(load(source)))
print(#f())
print(load("x ="), pcall(load, function() error("in reader") end))
print(select("#", load(function() return nil end)))
local n = 0
print(load(function() n = n + 1 return n < 50 and "local a" .. n .. " = {} " or nil end) ~= nil)

-- vararg, recursion, tail calls, stack growth
local function deep(n, ...) if n == 0 then return select("#", ...) end return 1 + (deep(n - 1, {}, ...)) end
print(deep(150))
local function tail(n, t) if n == 0 then return #t end t[#t + 1] = {n} return tail(n - 1, t) end
print(tail(20000, {}))
print(pcall(function() local function f() return f() + 1 end return f() end) == false)
print(select("#", table.unpack({}, 1, 5000)))

-- hooks and errors
local lines = 0
debug.sethook(function() lines = lines + 1 local _ = {} end, "l")
for i = 1, 100 do
  local _ = {i}
end
debug.sethook()
print(lines)
print(select(2, pcall(error, {code = 5})).code)
