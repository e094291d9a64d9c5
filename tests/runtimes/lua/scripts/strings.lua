-- SPDX-License-Identifier: GPL-2.0-or-later
-- Short strings are interned, and found again after cycles; long ones; buffers; files; userdata.
local t = {}
for round = 1, 20 do
  for i = 1, 3000 do t[i] = "s" .. (i * round) % 5000 end
  for i = 1, 3000 do assert(t[i] == "s" .. (i * round) % 5000) end
end
local set = {}
for i = 1, 20000 do set["n" .. i % 777] = (set["n" .. i % 777] or 0) + 1 end
local n = 0
for _, v in pairs(set) do n = n + v end
print(n)

local long = {}
for i = 1, 300 do long[string.rep("k" .. i, 30)] = i end
for i = 1, 300 do assert(long[string.rep("k" .. i, 30)] == i) end
local s = ""
for i = 1, 2000 do s = s .. string.char(97 + i % 26) end
print(#s, s:sub(1, 26), s:rep(3, "-"):len())

local parts = {}
for w in s:gmatch("a%a%a") do parts[#parts + 1] = w:upper() end
print(#parts, table.concat(parts):sub(1, 9))
print(("x"):rep(100000):gsub("x", function() return {} and "yy" end):len())
print((("abc %d %s %q"):format(5, setmetatable({}, {__tostring = function() return "obj" end}), "q\n")))
print(string.pack("<i4z", 7, "zz"):byte(1, -1))
print(utf8.char(228, 8364, 119070), #utf8.char(228, 8364, 119070))
print(tostring(1e15), 2^53 // 1, 7 // 0.0, math.type(3 // 1))

local name = os.tmpname()
local f = assert(io.open(name, "w"))
for i = 1, 500 do f:write(i, "\t", ("z"):rep(i % 40), "\n") end
f:close()
local lines, bytes = 0, 0
for l in io.lines(name) do lines, bytes = lines + 1, bytes + #l end
print(lines, bytes)
for i = 1, 200 do local g = io.open(name) if i % 2 == 0 then g:close() end end
collectgarbage()
print(pcall(io.lines, "/nonexistent"))
os.remove(name)
print(io.type(f), tostring(f))

local u = io.tmpfile()
debug.setuservalue(u, {1, 2, 3}, 1)
for i = 1, 5000 do local _ = {i} end
print(debug.getuservalue(u, 1) == nil or #debug.getuservalue(u, 1))
